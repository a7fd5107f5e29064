//! `top`: shows counts and rates of servers and tubes, on a full screen or line by line.

use std::io::{self, IsTerminal as _};
use std::slice;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::{Map, Value};

use super::top_screen;
use crate::args::TopArgs;
use crate::context::{Context, Outcome};
use crate::filter::Tubes;
use crate::output::Output;
use crate::sample::{COUNT_NAMES, Sample, Sampler, TubeSample};

/// Runs `beanstalkctl top`.
pub(crate) fn run(args: &TopArgs, context: &mut Context) -> Result<Outcome> {
    let selected = Tubes::new(&args.tubes)?;
    let servers = context.servers.iter().cloned();
    let samplers: Vec<_> = servers.map(|address| Sampler::new(address, None)).collect();
    if args.plain || context.out.json {
        return print_top_samples(args, samplers, &selected, context);
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() || Output::is_dumb_terminal() {
        bail!("not a terminal that can show a full screen: use --plain");
    }
    top_screen::run(args, samplers, &selected, &context.interrupt)
}

/// Prints the samples of `top`: a line for each server, or a line for each tube if tubes are
/// selected.
fn print_top_samples(
    args: &TopArgs,
    mut samplers: Vec<Sampler>,
    selected: &Tubes,
    context: &mut Context,
) -> Result<Outcome> {
    /// The heading is printed again after this many updates.
    const HEADING_INTERVAL: u64 = 20;
    let width = samplers.iter().map(|sampler| sampler.address.to_string().len()).max().unwrap_or(0);
    let mut updates = 0;
    while args.count.is_none_or(|count| updates < count) {
        let wait = Duration::from_secs(args.interval);
        if updates > 0 && !context.interrupt.sleep(wait) {
            break;
        }
        let has_heading = updates % HEADING_INTERVAL == 0;
        updates += 1;
        if context.out.json {
            for sampler in &mut samplers {
                let object = match sampler.sample(selected) {
                    Ok(sample) => top_sample_object(&sample),
                    Err(error) => Map::from_iter([("error".into(), format!("{error:#}").into())]),
                };
                context.out.object(object, Some(&sampler.address.to_string()))?;
            }
            context.out.flush()?;
            continue;
        }
        // Each column is wide enough for its longest numbers, so that all lines are aligned.
        let heading = ["put/s", "del/s", "conns"].into_iter();
        let columns = COUNT_NAMES.into_iter().chain(heading).map(|name| format!("{name:>10}"));
        let heading = columns.collect::<Vec<_>>().concat();
        if has_heading {
            context.out.line(&format!("{:width$}{heading}", "server"))?;
        }
        for sampler in &mut samplers {
            let name = sampler.address.to_string();
            let sample = match sampler.sample(selected) {
                Ok(sample) => sample,
                Err(error) => {
                    context.out.line(&format!("{name:width$}  {error:#}"))?;
                    continue;
                }
            };
            let lines =
                if selected.is_all() { slice::from_ref(&sample.server) } else { &sample.tubes };
            for line in lines {
                let rates = [line.puts, line.deletes].map(|rate| format!("{rate:>10.0}"));
                let counts = line.counts.map(|count| format!("{count:>10}"));
                let numbers = [counts.concat(), rates.concat()].concat();
                let connections = format!("{:>10}", sample.connections);
                let (tube, notes) = (&line.tube, sample.notes());
                let tube = if tube.is_empty() { String::new() } else { format!("  {tube}") };
                context.out.line(&format!("{name:width$}{numbers}{connections}{notes}{tube}"))?;
            }
        }
        context.out.flush()?;
    }
    Ok(Outcome::Done)
}

/// Makes the object of a sample for `top --json`.
fn top_sample_object(sample: &Sample) -> Map<String, Value> {
    let of = |line: &TubeSample| {
        let mut object = line.counts_json();
        object.insert("puts-per-second".to_owned(), line.puts.into());
        object.insert("deletes-per-second".to_owned(), line.deletes.into());
        object
    };
    let mut all = of(&sample.server);
    if let Some(state) = sample.binlog_trouble() {
        all.insert("binlog".to_owned(), state.into());
    }
    let tubes = sample.tubes.iter().map(|tube| (tube.tube.clone(), Value::Object(of(tube))));
    all.insert("tubes".to_owned(), Value::Object(tubes.collect()));
    all
}
