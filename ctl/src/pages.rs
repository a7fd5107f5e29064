//! The manual page and the shells' completions, from the definition of the commands.

use anyhow::Result;
use clap::CommandFactory as _;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::cli::Cli;
use crate::context::{Context, Outcome};

/// What the definition does not say.
const EXAMPLES: &str = "\
.SH EXAMPLES
Find a buried job by its content and kick it:
.PP
.nf
beanstalkctl grep --state buried 'order 4711'
beanstalkctl kick --id 93
beanstalkctl grep --state buried 'order 4711' --ids | beanstalkctl kick --id -
.fi
.PP
Empty a tube, and undo that; the jobs get new ids:
.PP
.nf
beanstalkctl clear mail --save mail.jobs
beanstalkctl import mail.jobs
.fi
.PP
Watch two servers:
.PP
.nf
beanstalkctl --server queue1:11300,queue2:11300 top
.fi
.PP
Copy all jobs to another server, or move a tube there:
.PP
.nf
beanstalkctl export | beanstalkctl --server queue2:11300 import
beanstalkctl move mail mail --to queue2:11300
.fi
.PP
Serve a page for browsers on this machine, to look only:
.PP
.nf
beanstalkctl web \\-\\-read\\-only
.fi
.SH HOW JOBS ARE FOUND
If the server has the command list\\-jobs, and a tube has at most 10,000 jobs in a state, the server
lists them. Otherwise stats\\-job is sent for each id, thousands at a time. That changes nothing,
and finds reserved jobs as well. It ends when as many jobs have been found as the server says there
are.
If a server has been restarted with a binlog, and all its jobs are older than that and some were
deleted meanwhile, the last id may not be known. Then this is told, and the exit status is 1:
\\-\\-probe learns the last id by a job of its own, and \\-\\-last\\-id tells it.
.SH WHAT IS LEFT IF IT IS INTERRUPTED
Ctrl\\-C ends a command after the present batch: up to 1,000 jobs of clear and delete, 200 of move,
2,000 of put and import. What was done is told, so that no job is lost or in two places unknown. A
second Ctrl\\-C ends it at once, as kill \\-9 does. Then the last batch of a move may be in both
places, the last batch of \\-\\-save may be both in the file and on the server, and copies of buried
jobs may be delayed by 365 days instead of buried. If only a server is lost, the jobs in doubt are
told by their ids.
.SH ENVIRONMENT
.TP
.B BEANSTALKD_SERVER
The server, if \\-\\-server does not name one.
.TP
.B NO_COLOR
If it is set, nothing is coloured.
.SH EXIT STATUS
0: done. 1: it failed; or not all was done or found, and that has been told. 2: the arguments are
wrong. 130: ended by Ctrl\\-C.
.SH SEE ALSO
.BR beanstalkd (1)
";

/// Prints the completions for a shell.
pub(crate) fn completions(shell: Shell, context: &mut Context) -> Result<Outcome> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "beanstalkctl", &mut script);
    context.out.bytes(&script)?;
    Ok(Outcome::Done)
}

/// Prints the manual page, with all commands on one page.
pub(crate) fn manual(context: &mut Context) -> Result<Outcome> {
    context.out.bytes(&page()?)?;
    Ok(Outcome::Done)
}

fn page() -> Result<Vec<u8>> {
    let mut page = Vec::new();
    let mut command = Cli::command().disable_help_subcommand(true);
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
        // Below the heading of its command it needs none.
        let text = String::from_utf8(part)?;
        let lines =
            text.lines().filter(|line| !line.starts_with(".SH")).map(|line| format!("{line}\n"));
        page.extend(".PP\n".bytes().chain(lines.collect::<String>().into_bytes()));
    }
    page.extend_from_slice(EXAMPLES.as_bytes());
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_has_every_command_and_flag() {
        let page = String::from_utf8(page().unwrap()).unwrap();
        for sub in Cli::command().get_subcommands() {
            let name = sub.get_name().replace('-', "\\-");
            assert!(page.contains(&format!(".SS {name}\n")), "{name}");
            for flag in sub.get_arguments().filter_map(clap::Arg::get_long) {
                assert!(page.contains(&flag.replace('-', "\\-")), "{name} --{flag}");
            }
        }
    }
}
