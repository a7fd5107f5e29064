//! `manual`: prints the manual page, made from the definition of the commands.

use anyhow::Result;
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::context::{Context, Outcome};

/// The part of the manual page that is not made from the definition of the commands.
const MANUAL_REST: &str = include_str!("../manual.roff");

/// Runs `beanstalkctl manual`.
pub(crate) fn run(cli: Command, context: &mut Context) -> Result<Outcome> {
    context.out.bytes(&manual_page(cli)?)?;
    Ok(Outcome::Done)
}

/// Makes the manual page from the definitions of the commands.
fn manual_page(cli: Command) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    let mut command = cli.disable_help_subcommand(true);
    command.build();
    let man = Man::new(command.clone());
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    let mut heading = Roff::new();
    heading.control("SH", ["COMMANDS"]);
    heading.to_writer(&mut page)?;
    for sub in command.get_subcommands() {
        let mut heading = Roff::new();
        heading.control("SS", [sub.get_name()]);
        let about = sub.get_long_about().or(sub.get_about()).map(ToString::to_string);
        heading.text([roman(about.unwrap_or_default())]);
        heading.to_writer(&mut page)?;
        let local = sub.clone().mut_args(|arg| {
            let is_global =
                arg.is_global_set() || ["help", "version"].contains(&arg.get_id().as_str());
            arg.hide(is_global)
        });
        let usage = local.clone().render_usage().to_string();
        let usage = usage.trim_start_matches("Usage: ").to_owned();
        let man = Man::new(local);
        let mut part = Vec::new();
        let mut synopsis = Roff::new();
        synopsis.text([bold(usage)]);
        synopsis.to_writer(&mut part)?;
        man.render_options_section(&mut part)?;
        // Omit the heading OPTIONS, because the options are below the heading of their command.
        let text = String::from_utf8(part)?;
        let lines =
            text.lines().filter(|line| !line.starts_with(".SH")).map(|line| format!("{line}\n"));
        page.extend(".PP\n".bytes().chain(lines.collect::<String>().into_bytes()));
    }
    page.extend_from_slice(MANUAL_REST.as_bytes());
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    #[test]
    fn the_manual_has_every_command_and_flag() {
        let page = String::from_utf8(manual_page(cli::build_cli()).unwrap()).unwrap();
        for sub in cli::build_cli().get_subcommands() {
            let name = sub.get_name().replace('-', "\\-");
            assert!(page.contains(&format!(".SS {name}\n")), "{name}");
            for flag in sub.get_arguments().filter_map(clap::Arg::get_long) {
                assert!(page.contains(&flag.replace('-', "\\-")), "{name} --{flag}");
            }
        }
    }
}
