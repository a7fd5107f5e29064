//! Reads lines from standard input or a file. A signal ends the wait for a line. The length of a
//! line is limited.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::AsFd as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::interrupt::Interrupt;
use crate::message::usage;

/// The size of the input buffer, in bytes.
const BUFFER_BYTES: usize = 1 << 20;

/// A file whose reads fail once a signal arrives.
#[derive(Debug)]
pub(crate) struct InputSource {
    file: File,
    interrupt: Interrupt,
}

impl Read for InputSource {
    /// Reads from the input; fails if a signal arrives first.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.interrupt.wait_to_read(&self.file)?;
        self.file.read(buffer)
    }
}

/// The input of a command.
pub(crate) type Input = BufReader<InputSource>;

/// Opens the input: a file, or standard input if the path is `-` or `None`.
pub(crate) fn open_input(path: Option<&Path>, interrupt: &Interrupt) -> Result<Input> {
    let file = match path.filter(|path| *path != Path::new("-")) {
        Some(path) => File::open(path).with_context(|| path.display().to_string())?,
        None => File::from(io::stdin().as_fd().try_clone_to_owned()?),
    };
    Ok(BufReader::with_capacity(BUFFER_BYTES, InputSource { file, interrupt: interrupt.clone() }))
}

/// Reads a line of at most `most` bytes, and returns the line without its LF; `None` at the end of
/// the input.
pub(crate) fn read_line(input: &mut Input, most: u64) -> Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    if input.take(most.saturating_add(1)).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if line.len() as u64 > most {
        bail!("it is longer than {most} bytes");
    }
    Ok(Some(line))
}

/// Whether the next line can be read without waiting.
pub(crate) fn has_input_line(input: &Input) -> bool {
    input.buffer().contains(&b'\n')
}

/// The longest line of ids on standard input, in bytes.
const IDS_LINE_BYTES_MAX: u64 = 1 << 20;

/// Returns the ids in the arguments, without duplicates; `-` means all ids on standard input.
pub(crate) fn read_ids(words: &[String], interrupt: &Interrupt) -> Result<Vec<u64>> {
    let mut ids = Vec::new();
    let mut add = |word: &str| -> Result<()> {
        ids.push(word.parse().map_err(|_| usage(format!("{word:?} is not an id")))?);
        Ok(())
    };
    for word in words {
        if word != "-" {
            add(word)?;
            continue;
        }
        let mut input = open_input(None, interrupt)?;
        while let Some(line) = read_line(&mut input, IDS_LINE_BYTES_MAX)? {
            String::from_utf8_lossy(&line).split_whitespace().try_for_each(&mut add)?;
        }
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}
