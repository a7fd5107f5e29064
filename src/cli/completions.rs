//! Completions of the flags for shells, from the table of flags.

use std::fmt::Write;

use super::{FLAGS, Flag};

/// A shell that completes command lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shell {
    /// Installed as `beanstalkd` in `bash-completion/completions`.
    Bash,
    /// Installed as `_beanstalkd` in a folder of `fpath`.
    Zsh,
    /// Installed as `beanstalkd.fish` in `vendor_completions.d`.
    Fish,
}

/// The values that an argument can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Values {
    Directories,
    Users,
    Shells,
    /// A number, a name or an address, which cannot be completed.
    Anything,
}

const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

fn values(argument: &str) -> Values {
    match argument {
        "DIR" => Values::Directories,
        "USER" => Values::Users,
        "SHELL" => Values::Shells,
        _ => Values::Anything,
    }
}

impl Shell {
    /// Finds a shell by its name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "bash" => Some(Self::Bash),
            "zsh" => Some(Self::Zsh),
            "fish" => Some(Self::Fish),
            _ => None,
        }
    }

    /// The text of the completion file.
    pub fn completions(self) -> String {
        match self {
            Self::Bash => bash(),
            Self::Zsh => zsh(),
            Self::Fish => fish(),
        }
    }
}

/// The first part of a flag's help text, short enough to be shown beside the flag.
fn summary(flag: &Flag) -> &str {
    let end = flag.help.find([';', ',', ':', '(']).unwrap_or(flag.help.len());
    flag.help[..end].trim_end()
}

fn bash() -> String {
    let mut out = String::from("# Completions of beanstalkd for bash.\n\n_beanstalkd() {\n");
    out += "    local word=$2 before=$3 IFS=$'\\n'\n    COMPREPLY=()\n    case $before in\n";
    for flag in FLAGS {
        let Some(argument) = flag.argument() else { continue };
        let names = flag.names().collect::<Vec<_>>().join("|");
        let choice = match values(argument) {
            Values::Directories => "compopt -o filenames; COMPREPLY=($(compgen -d -- \"$word\"));",
            Values::Users => "COMPREPLY=($(compgen -u -- \"$word\"));",
            Values::Shells => "COMPREPLY=($(compgen -W $'bash\\nzsh\\nfish' -- \"$word\"));",
            Values::Anything => "",
        };
        let space = if choice.is_empty() { "" } else { " " };
        line(&mut out, &format!("        {names}) {choice}{space}return ;;"));
    }
    let names: Vec<_> = FLAGS.iter().flat_map(Flag::names).collect();
    line(&mut out, "    esac");
    let names = names.join("\\n");
    line(&mut out, &format!("    COMPREPLY=($(compgen -W $'{names}' -- \"$word\"))"));
    out + "}\ncomplete -F _beanstalkd beanstalkd\n"
}

fn zsh() -> String {
    let mut out = String::from("#compdef beanstalkd\n\n_arguments -s");
    for flag in FLAGS {
        let summary = summary(flag);
        for name in flag.names() {
            // A letter's argument may be joined to it; a long name's follows `=` or a space.
            let joint = match (flag.argument().is_some(), name.starts_with("--")) {
                (false, _) => "",
                (true, false) => "+",
                (true, true) => "=",
            };
            let argument = flag.argument().map_or_else(String::new, |argument| {
                let action = match values(argument) {
                    Values::Directories => "_directories",
                    Values::Users => "_users",
                    Values::Shells => "(bash zsh fish)",
                    Values::Anything => " ",
                };
                format!(":{argument}:{action}")
            });
            write!(out, " \\\n    '*{name}{joint}[{summary}]{argument}'")
                .expect("writing to memory does not fail");
        }
    }
    out + "\n"
}

fn fish() -> String {
    let mut out =
        String::from("# Completions of beanstalkd for fish.\n\ncomplete -c beanstalkd -f\n");
    for flag in FLAGS {
        let mut words = vec!["complete -c beanstalkd".to_owned()];
        words.extend(flag.letter().map(|letter| format!("-s {letter}")));
        words.extend(flag.long().map(|long| format!("-l {long}")));
        words.extend(flag.argument().map(|argument| match values(argument) {
            Values::Directories => "-x -a '(__fish_complete_directories)'".into(),
            Values::Users => "-x -a '(__fish_complete_users)'".into(),
            Values::Shells => format!("-x -a '{}'", SHELLS.join(" ")),
            Values::Anything => "-x".into(),
        }));
        words.push(format!("-d '{}'", summary(flag)));
        line(&mut out, &words.join(" "));
    }
    out
}

fn line(out: &mut String, line: &str) {
    writeln!(out, "{line}").expect("writing to memory does not fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

    #[test]
    fn every_name_of_every_flag_is_completed_everywhere() {
        for flag in FLAGS {
            for name in flag.names() {
                assert!(Shell::Bash.completions().contains(name), "bash: {name}");
                assert!(Shell::Zsh.completions().contains(&format!("'*{name}")), "zsh: {name}");
            }
            let fish = Shell::Fish.completions();
            if let Some(letter) = flag.letter() {
                assert!(fish.contains(&format!(" -s {letter} ")), "fish: {letter}");
            }
            if let Some(long) = flag.long() {
                assert!(fish.contains(&format!(" -l {long} ")), "fish: {long}");
            }
        }
    }

    #[test]
    fn no_help_text_needs_quoting_in_a_shell() {
        let special = ['\'', '"', '[', ']', '\\', '$', '`'];
        assert!(FLAGS.iter().all(|flag| !flag.help.contains(special)));
    }

    #[test]
    fn a_shell_is_found_by_its_name() {
        assert_eq!(SHELLS.map(Shell::named), ALL.map(Some));
        assert_eq!(Shell::named("csh"), None);
    }
}
