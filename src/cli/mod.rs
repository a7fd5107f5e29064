//! The command line: one table of flags, from which the parser and the usage text (`usage.rs`) are
//! made. A test compares the table with the manual, doc/operations.md and the completions.
//!
//! The one-letter flags, their joined and combined forms and the exit statuses are as in the
//! original, so a service file for the original also starts this daemon. Every one-letter flag
//! except `-c` and `-n` also has a long name. [`parse`] reads arguments from left to right, stops
//! at `-h` or `-v`, and reports the first wrong argument. The last value of a repeated flag counts.

mod usage;

use std::{
    error::Error, ffi::OsStr, fmt, num::NonZeroU32, ops::RangeInclusive, path::PathBuf,
    time::Duration,
};

use getopts::{Fail, Options};

pub use self::usage::usage;
use crate::{proto::JOB_SIZE_LIMIT, server::Settings, wal::SyncPolicy};

/// The largest size of a binlog file in bytes: the original's limit, rounded up to a multiple of
/// 4096. For a larger size, the daemon logs a warning and uses this limit.
const BINLOG_SIZE_LIMIT: u64 = 1 << 31;

/// The longest time that the event loop polls before it sleeps, if `--busy-poll` is not given. A
/// client on the same machine sends its next command within a third of this time after a reply.
const BUSY_POLL_DEFAULT: Duration = Duration::from_micros(50);

/// The largest value of `--busy-poll`, in microseconds. A thread needs far less time than this to
/// go to sleep and wake up.
const BUSY_POLL_LIMIT_MICROSECONDS: u64 = 1000;

/// One flag of the command line.
#[derive(Debug)]
pub struct Flag {
    /// The flag's names and argument, as in `-b, --binlog DIR`.
    pub synopsis: &'static str,
    /// The flag's description in the usage text.
    pub help: &'static str,
}

/// Every flag, in the order of the usage text.
pub const FLAGS: &[Flag] = &[
    flag("-b, --binlog DIR", "keep jobs in a binlog in this directory"),
    flag(
        "-f, --sync MS",
        "sync the binlog at most MS milliseconds after a write (default is 50); -f0 syncs \
         it before each change is confirmed",
    ),
    flag("-F, --no-sync", "never sync the binlog"),
    flag(
        "-l, --listen ADDR",
        "listen on this address (default is 0.0.0.0), on the UNIX socket unix:PATH, or on \
         several of these, separated by commas",
    ),
    flag("-p, --port PORT", "listen on this port or service (default is 11300)"),
    flag("-u, --user USER", "become this user and its group"),
    flag(
        "-z, --max-job-size BYTES",
        "the largest job body in bytes (default is 65535); it can be at most 1073741824",
    ),
    flag(
        "-s, --binlog-size BYTES",
        "the size of a binlog file in bytes (default is 10485760); it is rounded up to a \
         multiple of 4096; it can be at most 2147483648",
    ),
    flag(
        "--max-memory BYTES",
        "limit the bodies of jobs, uploads and unsent replies to BYTES in total, counting 128 \
         bytes more for each, and resident memory to 1.25 * BYTES + 10 MB (default is no limit)",
    ),
    flag(
        "--bury-after N",
        "bury a job when it is lost for the N-th time: its time to run ends, or its \
         connection closes while it is reserved (default is never)",
    ),
    flag(
        "--wait-for-lock",
        "wait while another daemon has the directory of the binlog, and listen only after \
         that",
    ),
    flag(
        "--exit-on-binlog-failure SECONDS",
        "exit with status 11 when the binlog has failed for SECONDS, or at once if that is 0 \
         (default is to reply with errors until it works again)",
    ),
    flag(
        "--busy-poll USEC",
        "poll for at most USEC microseconds before sleeping, as long as clients send again \
         within that time and polling takes no more CPU time than sleeping (default is 50; \
         it can be at most 1000); 0 always sleeps",
    ),
    flag(
        "--check-binlog DIR",
        "print the segments, jobs and damage of the binlog in this directory and exit, \
         without changing anything; the status is 1 if it is damaged, and 10 if no daemon \
         could start there",
    ),
    flag(
        "--ping",
        "ask the daemon at -l and -p for a reply and exit; the status is 1 if none comes \
         within 5 seconds, or if its binlog has failed",
    ),
    flag("-c", "does nothing: a binlog is always compacted"),
    flag("-n", "does nothing: a binlog is always compacted"),
    flag("-v, --version", "print the version and exit"),
    flag("-V, --verbose", "log connections as well; -VV logs each command and reply"),
    flag("-h, --help", "print this help and exit"),
];

const fn flag(synopsis: &'static str, help: &'static str) -> Flag {
    Flag { synopsis, help }
}

impl Flag {
    /// The words of the flag's synopsis: its names and its argument.
    fn words(&self) -> impl Iterator<Item = &'static str> {
        self.synopsis.split([',', ' ']).filter(|word| !word.is_empty())
    }

    /// The names of the flag with their dashes, such as `-b` and `--binlog`.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.words().filter(|word| word.starts_with('-'))
    }

    /// The letter of the flag: `b` for `-b`.
    fn letter(&self) -> Option<&'static str> {
        self.names().find_map(|name| name.strip_prefix('-').filter(|rest| !rest.starts_with('-')))
    }

    /// The long name of the flag: `binlog` for `--binlog`.
    fn long(&self) -> Option<&'static str> {
        self.names().find_map(|name| name.strip_prefix("--"))
    }

    /// The name of the flag's argument, such as `DIR`; `None` if the flag takes no argument.
    pub fn argument(&self) -> Option<&'static str> {
        self.words().find(|word| !word.starts_with('-'))
    }
}

/// The action that the arguments request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Invocation {
    /// Serve as a daemon.
    Serve(Config),
    /// Print the usage and exit.
    Help,
    /// Print the version and exit.
    Version,
    /// Print a report on the binlog in this directory, and exit.
    CheckBinlog(PathBuf),
    /// Check whether the daemons at these addresses answer, and exit.
    Ping(Vec<Address>),
}

/// An address to listen on, or the address of a daemon to ping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A host and a service (port), each a name or a number. Startup resolves the names.
    Tcp {
        /// A host of `-l`.
        host: String,
        /// The port of `-p`.
        service: String,
    },
    /// The path of `-l unix:PATH`.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    /// Formats the address for a log line or an error.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, service } => write!(f, "{host} port {service}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The values of the flags, for a daemon that serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The addresses to listen on, from `-l` and `-p`: at least one address.
    pub addresses: Vec<Address>,
    /// Whether `-l` or `-p` is given.
    pub is_address_given: bool,
    /// The user of `-u`.
    pub user: Option<String>,
    /// The values of `-z`, `-s`, `--max-memory` and `--bury-after`.
    pub settings: Settings,
    /// The directory of `-b`.
    pub binlog: Option<PathBuf>,
    /// `-f` and `-F`: when the binlog is synced.
    pub sync: SyncPolicy,
    /// Whether `--wait-for-lock` is given.
    pub waits_for_lock: bool,
    /// The value of `--exit-on-binlog-failure`.
    pub exit_on_binlog_failure: Option<Duration>,
    /// The value of `--busy-poll`.
    pub busy_poll: Duration,
    /// The number of times `-V` is given.
    pub verbosity: usize,
    /// Warnings about the flags; each warning is one line.
    pub warnings: Vec<String>,
}

impl Default for Config {
    /// The defaults of all flags; the parser adds the addresses.
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            is_address_given: false,
            user: None,
            settings: Settings::default(),
            binlog: None,
            sync: SyncPolicy::Within(Duration::from_millis(50)),
            waits_for_lock: false,
            exit_on_binlog_failure: None,
            busy_poll: BUSY_POLL_DEFAULT,
            verbosity: 0,
            warnings: Vec::new(),
        }
    }
}

/// A message about the first wrong argument. After this error, the process exits with status 5.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageError(String);

impl fmt::Display for UsageError {
    /// Formats the mistake in the arguments.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for UsageError {}

/// Parses the arguments of the command line, which do not include the name of the program.
///
/// A wrong argument after `-h` or `-v` must not be reported, but getopts checks all its arguments.
/// So this function passes one flag at a time to getopts: a dash and one letter, or a word that
/// begins with two dashes. If getopts reports that the flag needs a value, the function passes the
/// flag once more together with the value: the letters that follow the flag, or, if none follow,
/// the next word.
pub fn parse<A: AsRef<OsStr>>(arguments: &[A]) -> Result<Invocation, UsageError> {
    let options = options();
    let mut draft = Draft::default();
    let mut words = arguments.iter().map(|word| utf8(word.as_ref()));
    // The letters of a word such as `-Vp` that have not been read yet.
    let mut letters = "";
    loop {
        let flag = if let Some(letter) = letters.chars().next() {
            letters = &letters[letter.len_utf8()..];
            format!("-{letter}")
        } else {
            let Some(word) = words.next().transpose()? else { return Ok(draft.finish()) };
            if word.len() > 1 && word.starts_with('-') && !word.starts_with("--") {
                letters = &word[1..];
                continue;
            }
            word.into()
        };
        let written = flag.split_once('=').map_or(&*flag, |(name, _)| name);
        // getopts would mistake `--` for the end of the flags, and `--p` for `-p`.
        if written.strip_prefix("--").is_some_and(|name| name.chars().count() < 2) {
            return Err(UsageError(format!("unknown flag: {written}")));
        }
        let mut read = options.parse([&flag]);
        if let Err(Fail::ArgumentMissing(_)) = read {
            let argument = match std::mem::take(&mut letters) {
                "" => words.next().transpose()?,
                joined => Some(joined),
            };
            read = options.parse([Some(&*flag), argument].into_iter().flatten());
        }
        let matches = read.map_err(|fail| explain(&fail))?;
        let mut names = FLAGS.iter().filter_map(|flag| flag.long().or(flag.letter()));
        match names.find(|name| matches.opt_present(name)) {
            None => return Err(UsageError(format!("unknown argument: {flag}"))),
            Some("help") => return Ok(Invocation::Help),
            Some("version") => return Ok(Invocation::Version),
            Some(name) => draft.set(name, &matches.opt_str(name).unwrap_or_default(), written)?,
        }
    }
}

/// Converts the table of flags for the parser of getopts.
fn options() -> Options {
    let mut options = Options::new();
    for flag in FLAGS {
        let (letter, long) = (flag.letter().unwrap_or_default(), flag.long().unwrap_or_default());
        match flag.argument() {
            Some(hint) => options.optopt(letter, long, "", hint),
            None => options.optflag(letter, long, ""),
        };
    }
    options
}

/// The error for arguments that getopts refuses.
fn explain(fail: &Fail) -> UsageError {
    let (mistake, name) = match fail {
        Fail::ArgumentMissing(name) => ("flag requires an argument", name),
        Fail::UnrecognizedOption(name) => ("unknown flag", name),
        Fail::UnexpectedArgument(name) => ("flag takes no argument", name),
        other => return UsageError(other.to_string()),
    };
    let dashes = if name.chars().count() > 1 { "--" } else { "-" };
    UsageError(format!("{mistake}: {dashes}{name}"))
}

/// The text of an argument. Fails if the argument is not UTF-8.
fn utf8(word: &OsStr) -> Result<&str, UsageError> {
    let not_utf8 = || UsageError(format!("not UTF-8: {}", word.to_string_lossy()));
    word.to_str().ok_or_else(not_utf8)
}

/// The request, built from the arguments that have been read so far.
#[derive(Debug, Default)]
struct Draft {
    /// The action to take instead of serving, if any. For a ping, `finish` adds the addresses.
    instead: Option<Invocation>,
    list: Option<String>,
    service: Option<String>,
    /// The values of the flags; `finish` adds the addresses.
    config: Config,
}

impl Draft {
    /// Applies one flag with its argument.
    fn set(&mut self, name: &str, argument: &str, written: &str) -> Result<(), UsageError> {
        let Self { instead, list, service, config } = self;
        match name {
            "binlog" => config.binlog = Some(argument.into()),
            "sync" => config.sync = SyncPolicy::Within(Duration::from_millis(size(argument)?)),
            "no-sync" => config.sync = SyncPolicy::Never,
            "listen" => {
                if argument.contains(',') && argument.split(',').any(str::is_empty) {
                    return Err(UsageError(format!("empty address: {argument}")));
                }
                *list = Some(argument.into());
            }
            "port" => *service = Some(argument.into()),
            "user" => config.user = Some(argument.into()),
            "max-job-size" => {
                let size = self.capped(argument, written, JOB_SIZE_LIMIT.into())?;
                self.config.settings.job_size_limit = u32::try_from(size).unwrap_or(JOB_SIZE_LIMIT);
            }
            "binlog-size" => {
                self.config.settings.binlog_size =
                    self.capped(argument, written, BINLOG_SIZE_LIMIT)?;
            }
            "max-memory" => {
                config.settings.memory_limit = Some(number(argument, written, 0..=u64::MAX)?);
            }
            "bury-after" => {
                let losses = number(argument, written, 1..=u32::MAX.into())?;
                config.settings.bury_after = u32::try_from(losses).ok().and_then(NonZeroU32::new);
            }
            "wait-for-lock" => config.waits_for_lock = true,
            "exit-on-binlog-failure" => {
                let seconds = number(argument, written, 0..=u64::MAX)?;
                config.exit_on_binlog_failure = Some(Duration::from_secs(seconds));
            }
            "busy-poll" => {
                let microseconds = number(argument, written, 0..=BUSY_POLL_LIMIT_MICROSECONDS)?;
                config.busy_poll = Duration::from_micros(microseconds);
            }
            "check-binlog" => *instead = Some(Invocation::CheckBinlog(argument.into())),
            "ping" => *instead = Some(Invocation::Ping(Vec::new())),
            "verbose" => config.verbosity += 1,
            "c" | "n" => {
                let warning = format!("{written} does nothing: a binlog is always compacted");
                config.warnings.push(warning);
            }
            name => unreachable!("the table has the flag {name}, and nothing here reads it"),
        }
        Ok(())
    }

    /// Parses the size after a flag. If it exceeds `limit`, adds a warning and returns `limit`.
    fn capped(&mut self, text: &str, written: &str, limit: u64) -> Result<u64, UsageError> {
        let size = size(text)?;
        if size > limit {
            self.config.warnings.push(format!("{written} {text} is too large: using {limit}"));
        }
        Ok(size.min(limit))
    }

    /// Completes the settings after the last flag: adds the addresses of `-l` and `-p`.
    fn finish(mut self) -> Invocation {
        self.config.is_address_given = self.list.is_some() || self.service.is_some();
        let list = self.list.as_deref().unwrap_or("0.0.0.0");
        let addresses = addresses(list, self.service.as_deref().unwrap_or("11300"));
        match self.instead {
            None => Invocation::Serve(Config { addresses, ..self.config }),
            Some(Invocation::Ping(_)) => Invocation::Ping(addresses),
            Some(other) => other,
        }
    }
}

/// Parses the list of `-l`. A comma ends an address, even in the path of a UNIX socket.
fn addresses(list: &str, service: &str) -> Vec<Address> {
    let address = |host: &str| match host.strip_prefix("unix:") {
        Some(path) => Address::Unix(path.into()),
        None => Address::Tcp { host: host.into(), service: service.into() },
    };
    list.split(',').map(address).collect()
}

/// Parses the number of a flag that the original does not have: digits only, and within `range`.
fn number(text: &str, written: &str, range: RangeInclusive<u64>) -> Result<u64, UsageError> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|number| is_plain && range.contains(number));
    let (min, max) = range.into_inner();
    number.ok_or_else(|| UsageError(format!("{written} must be from {min} to {max}: {text}")))
}

/// Parses the number after a flag of the original, as C's `scanf` with `%zu` does. White space and
/// a sign may precede the digits. A negative number wraps round, so `-z -1` means the largest
/// 64-bit number. A number that does not fit into 64 bits also means the largest 64-bit number.
fn size(text: &str) -> Result<u64, UsageError> {
    let trimmed = text.trim_start();
    let digits = trimmed.strip_prefix(['+', '-']).unwrap_or(trimmed);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(UsageError(format!("invalid size: {text}")));
    }
    // A text of digits fails to parse only if the number does not fit into 64 bits.
    Ok(match digits.parse::<u64>() {
        Ok(number) if trimmed.starts_with('-') => number.wrapping_neg(),
        Ok(number) => number,
        Err(_) => u64::MAX,
    })
}

#[cfg(test)]
mod tests;
