//! What a command reads: standard input or a file. A signal ends the wait for it, and no line is
//! longer in memory than its bound.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::AsFd as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::interrupt::Interrupt;

/// How much is read at once, in bytes.
const READ_BYTES: usize = 1 << 20;

/// A file that is read until a signal comes.
#[derive(Debug)]
pub(crate) struct Source {
    file: File,
    interrupt: Interrupt,
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.interrupt.wait_to_read(&self.file)?;
        self.file.read(buffer)
    }
}

/// What a command reads.
pub(crate) type Input = BufReader<Source>;

/// Opens a file, or standard input for `-` or none.
pub(crate) fn open(path: Option<&Path>, interrupt: &Interrupt) -> Result<Input> {
    let file = match path.filter(|path| *path != Path::new("-")) {
        Some(path) => File::open(path).with_context(|| path.display().to_string())?,
        None => File::from(io::stdin().as_fd().try_clone_to_owned()?),
    };
    Ok(BufReader::with_capacity(READ_BYTES, Source { file, interrupt: interrupt.clone() }))
}

/// Reads a line without its end, of at most `most` bytes; `None` at the end of the input.
pub(crate) fn line(input: &mut Input, most: u64) -> Result<Option<Vec<u8>>> {
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

/// Whether the next line can be read without waiting for it.
pub(crate) fn has_line(input: &Input) -> bool {
    input.buffer().contains(&b'\n')
}
