//! The command line: one table of flags, from which come the reading of arguments, the usage
//! text, the shells' completions, and by test the manual and the README.
//!
//! Flags of one letter, their joined and combined forms and their exit codes are the original's,
//! so that a service file written for it starts this daemon; beside them each flag has a long
//! name. Of a repeated flag the last one wins.

use std::{
    ffi::OsStr,
    fmt::{self, Write},
    path::PathBuf,
    time::Duration,
};

use getopts::{Fail, Matches, Options};

use crate::{
    completions::Shell,
    proto::{JOB_SIZE_DEFAULT, JOB_SIZE_LIMIT},
    wal::Sync,
};

/// One flag of the command line.
#[derive(Debug)]
pub struct Flag {
    /// Its letter, as in `-b`.
    pub letter: Option<&'static str>,
    /// Its long name, as in `--binlog`.
    pub long: Option<&'static str>,
    /// The name of its argument, if it takes one.
    pub argument: Option<&'static str>,
    /// What it does.
    pub help: &'static str,
}

/// Every flag, in the order of the usage text.
pub const FLAGS: &[Flag] = &[
    flag(Some("b"), Some("binlog"), Some("DIR"), "keep jobs in a binlog in this directory"),
    flag(
        Some("f"),
        Some("sync"),
        Some("MS"),
        "sync the binlog at most MS milliseconds after a write (default is 50); -f0 syncs it \
         before every reply",
    ),
    flag(Some("F"), Some("no-sync"), None, "never sync the binlog"),
    flag(
        Some("l"),
        Some("listen"),
        Some("ADDR"),
        "listen on this address (default is 0.0.0.0), on the UNIX socket unix:PATH, or on \
         several of them with commas between",
    ),
    flag(
        Some("p"),
        Some("port"),
        Some("PORT"),
        "listen on this port or service (default is 11300)",
    ),
    flag(Some("u"), Some("user"), Some("USER"), "become this user and its group"),
    flag(
        Some("z"),
        Some("max-job-size"),
        Some("BYTES"),
        "the largest job body in bytes (default is 65535); it can be at most 1073741824",
    ),
    flag(
        Some("s"),
        Some("binlog-size"),
        Some("BYTES"),
        "the size of a binlog file in bytes (default is 10485760); it is rounded up to a \
         multiple of 4096",
    ),
    flag(
        None,
        Some("max-memory"),
        Some("BYTES"),
        "refuse a job that would take all jobs beyond so many bytes, counting 128 for each and \
         its body (default is no limit)",
    ),
    flag(
        None,
        Some("check-binlog"),
        Some("DIR"),
        "say what the binlog in this directory holds and exit, without changing anything; the \
         status is 1 if it is damaged",
    ),
    flag(
        None,
        Some("ping"),
        None,
        "ask the daemon at -l and -p for a reply and exit; the status is 1 if none comes within \
         5 seconds",
    ),
    flag(
        None,
        Some("completions"),
        Some("SHELL"),
        "print the completions of these flags for bash, zsh or fish and exit",
    ),
    flag(Some("c"), None, None, "does nothing: a binlog is always compacted"),
    flag(Some("n"), None, None, "does nothing: a binlog is always compacted"),
    flag(Some("v"), Some("version"), None, "print the version and exit"),
    flag(
        Some("V"),
        Some("verbose"),
        None,
        "log connections as well; -VV logs each command and reply",
    ),
    flag(Some("h"), Some("help"), None, "print this help and exit"),
];

const fn flag(
    letter: Option<&'static str>,
    long: Option<&'static str>,
    argument: Option<&'static str>,
    help: &'static str,
) -> Flag {
    Flag { letter, long, argument, help }
}

impl Flag {
    /// Each way to write it, with its dashes.
    pub fn names(&self) -> impl Iterator<Item = String> {
        let letter = self.letter.map(|letter| format!("-{letter}"));
        letter.into_iter().chain(self.long.map(|long| format!("--{long}")))
    }

    /// All ways to write it and its argument: `-b, --binlog DIR`.
    pub fn synopsis(&self) -> String {
        let names = self.names().collect::<Vec<_>>().join(", ");
        [Some(&*names), self.argument].into_iter().flatten().collect::<Vec<_>>().join(" ")
    }
}

/// What the process is asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Invocation {
    /// Be a daemon.
    Serve(Config),
    /// Print the usage and exit.
    Help,
    /// Print the version and exit.
    Version,
    /// Print what is in the binlog of this directory and exit.
    CheckBinlog(PathBuf),
    /// See whether the daemons at these addresses answer, and exit.
    Ping(Vec<Address>),
    /// Print what a shell wants to know of the flags, and exit.
    Completions(Shell),
}

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// Names or numbers, resolved at start.
    Tcp {
        /// `-l`
        host: String,
        /// `-p`
        service: String,
    },
    /// `-l unix:PATH`
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, service } => write!(f, "{host} port {service}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// All that the flags decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `-l` and `-p`: at least one.
    pub addresses: Vec<Address>,
    /// Whether they are more than the default.
    pub is_address_given: bool,
    /// `-u`.
    pub user: Option<String>,
    /// `-z`, in bytes.
    pub job_size_limit: u32,
    /// `-b`.
    pub binlog: Option<PathBuf>,
    /// `-f` and `-F`.
    pub sync: Sync,
    /// `-s`, in bytes.
    pub binlog_size: u64,
    /// `--max-memory`, in bytes.
    pub memory_limit: Option<u64>,
    /// How many `-V`.
    pub verbosity: usize,
    /// What the user should know about these flags, a line each.
    pub warnings: Vec<String>,
}

/// Arguments that make no sense, and why. The process exits with 5.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageError(String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Reads the arguments, without the program's name.
pub fn parse<A: AsRef<OsStr>>(arguments: &[A]) -> Result<Invocation, UsageError> {
    let matches = options().parse(arguments).map_err(|fail| UsageError(explain(&fail)))?;
    let first = |letter: &str| matches.opt_positions(letter).first().copied();
    match (first("h"), first("v")) {
        (Some(help), version) if version.is_none_or(|version| help < version) => {
            return Ok(Invocation::Help);
        }
        (_, Some(_)) => return Ok(Invocation::Version),
        _ => {}
    }
    if let Some(argument) = matches.free.first() {
        return Err(UsageError(format!("unknown argument: {argument}")));
    }
    if let Some(path) = matches.opt_strs("check-binlog").pop() {
        return Ok(Invocation::CheckBinlog(path.into()));
    }
    if let Some(name) = matches.opt_strs("completions").pop() {
        let shell = Shell::named(&name);
        let unknown = || UsageError(format!("completions are for bash, zsh or fish: {name}"));
        return shell.map(Invocation::Completions).ok_or_else(unknown);
    }
    if matches.opt_present("ping") {
        return addresses(&matches).map(Invocation::Ping);
    }
    config(&matches).map(Invocation::Serve)
}

fn options() -> Options {
    let mut options = Options::new();
    for Flag { letter, long, argument, .. } in FLAGS {
        let (letter, long) = (letter.unwrap_or_default(), long.unwrap_or_default());
        match argument {
            Some(hint) => options.optmulti(letter, long, "", hint),
            None => options.optflagmulti(letter, long, ""),
        };
    }
    options
}

fn explain(fail: &Fail) -> String {
    match fail {
        Fail::ArgumentMissing(name) if name.len() > 1 => {
            format!("flag requires an argument: --{name}")
        }
        Fail::ArgumentMissing(name) => format!("flag requires an argument: -{name}"),
        Fail::UnrecognizedOption(name) if name.len() > 1 => format!("unknown flag: --{name}"),
        Fail::UnrecognizedOption(name) => format!("unknown flag: -{name}"),
        Fail::UnexpectedArgument(name) => format!("flag takes no argument: --{name}"),
        other => other.to_string(),
    }
}

fn config(matches: &Matches) -> Result<Config, UsageError> {
    let last = |letter: &str| matches.opt_strs(letter).pop();
    let mut warnings = Vec::new();
    for letter in ["c", "n"] {
        if matches.opt_present(letter) {
            warnings.push(format!("-{letter} does nothing: a binlog is always compacted"));
        }
    }
    let job_size_limit = match last("z") {
        None => JOB_SIZE_DEFAULT,
        Some(text) => u32::try_from(size(&text)?)
            .ok()
            .filter(|&limit| limit <= JOB_SIZE_LIMIT)
            .unwrap_or_else(|| {
                warnings.push(format!("-z {text} is too large: using {JOB_SIZE_LIMIT}"));
                JOB_SIZE_LIMIT
            }),
    };
    Ok(Config {
        addresses: addresses(matches)?,
        is_address_given: ["l", "p"].iter().any(|letter| matches.opt_present(letter)),
        user: last("u"),
        job_size_limit,
        binlog: last("b").map(PathBuf::from),
        sync: sync(matches)?,
        binlog_size: last("s").map_or(Ok(10 << 20), |text| size(&text))?,
        memory_limit: last("max-memory").map(|text| size(&text)).transpose()?,
        verbosity: matches.opt_count("V"),
        warnings,
    })
}

/// Reads the list of `-l`. A UNIX socket's path ends at a comma like everything else.
fn addresses(matches: &Matches) -> Result<Vec<Address>, UsageError> {
    let list = matches.opt_strs("l").pop().unwrap_or_else(|| "0.0.0.0".into());
    let service = matches.opt_strs("p").pop().unwrap_or_else(|| "11300".into());
    if list.contains(',') && list.split(',').any(str::is_empty) {
        return Err(UsageError(format!("an address is missing: {list}")));
    }
    let address = |host: &str| match host.strip_prefix("unix:") {
        Some(path) => Address::Unix(path.into()),
        None => Address::Tcp { host: host.into(), service: service.clone() },
    };
    Ok(list.split(',').map(address).collect())
}

/// `-f` and `-F` override each other: the last one wins.
fn sync(matches: &Matches) -> Result<Sync, UsageError> {
    let Some((at, text)) = matches.opt_strs_pos("f").pop() else {
        return Ok(if matches.opt_present("F") {
            Sync::Never
        } else {
            Sync::Within(Duration::from_millis(50))
        });
    };
    let within = Sync::Within(Duration::from_millis(size(&text)?));
    let is_overridden = matches.opt_positions("F").last().is_some_and(|&never| never > at);
    Ok(if is_overridden { Sync::Never } else { within })
}

/// Reads a number as C's `%zu` does: white space and a sign may precede it, and a negative one
/// wraps round, so that `-z -1` asks for the most there is.
fn size(text: &str) -> Result<u64, UsageError> {
    let invalid = || UsageError(format!("invalid size: {text}"));
    let trimmed = text.trim_start();
    let unsigned = trimmed.strip_prefix(['+', '-']).unwrap_or(trimmed);
    if !unsigned.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(invalid());
    }
    let number: u64 = unsigned.parse().map_err(|_| invalid())?;
    Ok(if trimmed.starts_with('-') { number.wrapping_neg() } else { number })
}

/// Where the texts of the flags begin in a line of the usage, and how wide they are.
const TEXT: usize = 27;
const TEXT_WIDTH: usize = 80 - TEXT;

/// The usage text, ending in a line end.
pub fn usage() -> String {
    let mut out = String::from("Use: beanstalkd [OPTIONS]\n\nOptions:\n");
    for flag in FLAGS {
        // Those without a letter stand under the long names of the others.
        let indent = if flag.letter.is_none() { "     " } else { " " };
        let mut head = format!("{indent}{}", flag.synopsis());
        for line in wrap(flag.help) {
            writeln!(out, "{head:TEXT$}{line}").expect("writing to memory does not fail");
            head.clear();
        }
    }
    out
}

/// Breaks a text into lines between its words.
fn wrap(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is one from the start");
        if line.is_empty() {
            line.push_str(word);
        } else if line.len() + 1 + word.len() <= TEXT_WIDTH {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.into());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serve(line: &str) -> Config {
        match read(line) {
            Ok(Invocation::Serve(config)) => config,
            other => panic!("{line}: {other:?}"),
        }
    }

    fn read(line: &str) -> Result<Invocation, UsageError> {
        parse(&line.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>())
    }

    fn tcp(host: &str, service: &str) -> Address {
        Address::Tcp { host: host.into(), service: service.into() }
    }

    fn unix(path: &str) -> Address {
        Address::Unix(path.into())
    }

    #[test]
    fn nothing_given_means_the_originals_defaults() {
        assert_eq!(
            serve(""),
            Config {
                addresses: vec![tcp("0.0.0.0", "11300")],
                is_address_given: false,
                user: None,
                job_size_limit: 65_535,
                binlog: None,
                sync: Sync::Within(Duration::from_millis(50)),
                binlog_size: 10_485_760,
                memory_limit: None,
                verbosity: 0,
                warnings: vec![],
            }
        );
    }

    #[test]
    fn flags_may_be_joined_combined_and_repeated() {
        assert_eq!(serve("-VVV").verbosity, 3);
        assert_eq!(serve("-V -VV").verbosity, 3);
        assert_eq!(serve("-p11301").addresses, [tcp("0.0.0.0", "11301")]);
        assert_eq!(
            serve("-l ::1,::2 -p beanstalk -p 7 -l localhost").addresses,
            [tcp("localhost", "7")]
        );
        assert_eq!(serve("-Vp11301").addresses, [tcp("0.0.0.0", "11301")]);
        assert_eq!(serve("-b/dir -unobody").binlog, Some("/dir".into()));
        assert_eq!(serve("-b/dir -unobody").user, Some("nobody".into()));
        assert_eq!(serve("-l unix:/run/b.sock -p 7").addresses, [unix("/run/b.sock")]);
        assert_eq!(serve("-l unix:///run/b").addresses, [unix("///run/b")]);
    }

    #[test]
    fn a_list_has_one_port_for_all_its_hosts() {
        assert_eq!(
            serve("-l 127.0.0.1,::1,unix:/run/b.sock -p 7").addresses,
            [tcp("127.0.0.1", "7"), tcp("::1", "7"), unix("/run/b.sock")]
        );
        assert_eq!(serve("-lunix:/a,unix:/b").addresses, [unix("/a"), unix("/b")]);
        for list in [",", "::1,", ",::1", "::1,,::2"] {
            let mistake = UsageError(format!("an address is missing: {list}"));
            assert_eq!(parse(&["-l", list]), Err(mistake));
        }
    }

    #[test]
    fn long_names_do_as_their_letters() {
        let pairs = [
            ("--binlog /d --sync 7 --binlog-size=4096", "-b /d -f7 -s4096"),
            ("--sync=7 --no-sync", "-f7 -F"),
            ("--listen ::1 --port=7", "-l ::1 -p 7"),
            ("--user nobody --max-job-size 9 --verbose -V", "-u nobody -z9 -VV"),
            ("-b /d --binlog /e -b /f", "-b /f"),
            ("--version --help", "-v"),
        ];
        for (long, short) in pairs {
            assert_eq!(read(long), read(short), "{long}");
        }
    }

    #[test]
    fn what_is_asked_of_a_running_daemon_or_a_shell() {
        assert_eq!(read("--ping"), Ok(Invocation::Ping(vec![tcp("0.0.0.0", "11300")])));
        assert_eq!(
            read("-l ::1,unix:/a --ping -p 7"),
            Ok(Invocation::Ping(vec![tcp("::1", "7"), unix("/a")]))
        );
        assert_eq!(read("--completions zsh"), Ok(Invocation::Completions(Shell::Zsh)));
        let mistake = "completions are for bash, zsh or fish: csh";
        assert_eq!(read("--completions csh"), Err(UsageError(mistake.into())));
    }

    #[test]
    fn the_last_word_on_syncing_wins() {
        assert_eq!(serve("-f0").sync, Sync::Within(Duration::ZERO));
        assert_eq!(serve("-F").sync, Sync::Never);
        assert_eq!(serve("-F -f 10").sync, Sync::Within(Duration::from_millis(10)));
        assert_eq!(serve("-f 10 -F").sync, Sync::Never);
        assert_eq!(serve("-F -f 10 -f 20").sync, Sync::Within(Duration::from_millis(20)));
    }

    #[test]
    fn sizes_are_capped_with_a_warning() {
        assert_eq!(serve("-z 1073741824").job_size_limit, JOB_SIZE_LIMIT);
        assert!(serve("-z 1073741824").warnings.is_empty());
        for line in ["-z 1073741825", "-z 99999999999", "-z -1"] {
            assert_eq!(serve(line).job_size_limit, JOB_SIZE_LIMIT, "{line}");
            assert_eq!(serve(line).warnings.len(), 1, "{line}");
        }
        assert_eq!(serve("-s 0").binlog_size, 0);
        assert_eq!(serve("--max-memory 1000000").memory_limit, Some(1_000_000));
        assert_eq!(serve("-c -n").warnings.len(), 2);
    }

    #[test]
    fn mistakes_are_named() {
        let cases = [
            ("-x", "unknown flag: -x"),
            ("-Vx", "unknown flag: -x"),
            ("--porter 5", "unknown flag: --porter"),
            ("--por 5", "unknown flag: --por"),
            ("--help=me", "flag takes no argument: --help"),
            ("--port", "flag requires an argument: --port"),
            ("-p", "flag requires an argument: -p"),
            ("-z", "flag requires an argument: -z"),
            ("-z ten", "invalid size: ten"),
            ("-z 10k", "invalid size: 10k"),
            ("-f +-1", "invalid size: +-1"),
            ("-s 99999999999999999999", "invalid size: 99999999999999999999"),
            ("start", "unknown argument: start"),
            ("-V -", "unknown argument: -"),
        ];
        for (line, wanted) in cases {
            assert_eq!(read(line), Err(UsageError(wanted.into())), "{line}");
        }
        assert_eq!(parse(&["-z", ""]), Err(UsageError("invalid size: ".into())));
    }

    #[test]
    fn help_and_version_go_before_serving() {
        assert_eq!(read("-h"), Ok(Invocation::Help));
        assert_eq!(read("--help"), Ok(Invocation::Help));
        assert_eq!(read("-v"), Ok(Invocation::Version));
        assert_eq!(read("-p 1 -v -h"), Ok(Invocation::Version));
        assert_eq!(read("-h -v"), Ok(Invocation::Help));
    }

    #[test]
    fn the_usage_has_the_originals_shape() {
        let usage = usage();
        assert!(usage.starts_with("Use: beanstalkd [OPTIONS]\n\nOptions:\n -b, --binlog DIR    "));
        assert!(usage.contains("\n     --ping                ask"));
        assert!(usage.lines().all(|line| line.len() <= 80));
        let columns: Vec<_> = usage.lines().skip(3).map(|line| &line[TEXT - 1..=TEXT]).collect();
        assert!(columns.iter().all(|it| it.starts_with(' ') && !it.ends_with(' ')), "{usage}");
    }
}
