//! Makes the usage text from the table of flags.

use std::fmt::Write;

use super::FLAGS;

/// The column in which the help texts begin.
pub(super) const HELP_COLUMN: usize = 27;
const HELP_WIDTH: usize = 80 - HELP_COLUMN;

/// The usage text, which ends in a line feed.
pub fn usage() -> String {
    let mut out = String::from("Use: beanstalkd [OPTIONS]\n\nOptions:\n");
    for flag in FLAGS {
        // Flags without a letter are aligned with the long names of flags that have a letter.
        let indent = if flag.letter().is_none() { "     " } else { " " };
        let mut head = format!("{indent}{}", flag.synopsis);
        if head.len() >= HELP_COLUMN {
            writeln!(out, "{head}").expect("writing to memory does not fail");
            head.clear();
        }
        for line in wrap(flag.help) {
            writeln!(out, "{head:HELP_COLUMN$}{line}").expect("writing to memory does not fail");
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
        } else if line.len() + 1 + word.len() <= HELP_WIDTH {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.into());
        }
    }
    lines
}
