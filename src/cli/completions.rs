//! Completions of the flags for shells, from the table of flags.

use std::fmt::Write;

use super::{FLAGS, Flag};

/// The text of the completion file for `shell`: bash, zsh or fish. `None` for another. It is
/// installed as `beanstalkd` in `bash-completion/completions`, as `_beanstalkd` in a folder of
/// zsh's `fpath`, or as `beanstalkd.fish` in `vendor_completions.d`.
pub(super) fn completions(shell: &str) -> Option<String> {
    match shell {
        "bash" => Some(bash()),
        "zsh" => Some(zsh()),
        "fish" => Some(fish()),
        _ => None,
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
        let choice = match argument {
            "DIR" => "compopt -o filenames; COMPREPLY=($(compgen -d -- \"$word\"));",
            "USER" => "COMPREPLY=($(compgen -u -- \"$word\"));",
            "SHELL" => "COMPREPLY=($(compgen -W $'bash\\nzsh\\nfish' -- \"$word\"));",
            _ => "",
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
                let action = match argument {
                    "DIR" => "_directories",
                    "USER" => "_users",
                    "SHELL" => "(bash zsh fish)",
                    _ => " ",
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
        words.extend(flag.argument().map(|argument| match argument {
            "DIR" => "-x -a '(__fish_complete_directories)'".into(),
            "USER" => "-x -a '(__fish_complete_users)'".into(),
            "SHELL" => "-x -a 'bash zsh fish'".into(),
            _ => "-x".into(),
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

    #[test]
    fn every_name_of_every_flag_is_completed_everywhere() {
        let completions = |shell| completions(shell).expect("it is known");
        for flag in FLAGS {
            for name in flag.names() {
                assert!(completions("bash").contains(name), "bash: {name}");
                assert!(completions("zsh").contains(&format!("'*{name}")), "zsh: {name}");
            }
            let fish = completions("fish");
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
}
