//! A view of a file through a buffer of fixed size, so that a file of any size takes the same
//! memory.

use std::io;

use super::replay::Progress;
use crate::wal::{Disk, Error, Name, interface};

/// The size of a page in bytes. A page that the disk cannot read is taken for zeros.
const PAGE_BYTES: u64 = 4096;

/// A view of one file at a time. The file's first `size` bytes must not change while it is viewed.
pub(super) struct Window<'a> {
    disk: &'a mut dyn Disk,
    progress: Progress<'a>,
    /// The number of bytes in the files that were read before this file, for `progress`.
    before: u64,
    /// The number of bytes in all files, for `progress`.
    all: u64,
    pub(super) name: Name,
    /// The length of the file in bytes.
    pub(super) size: u64,
    /// The offset in the file of the buffer's first byte.
    start: u64,
    buffer: Vec<u8>,
    /// How many bytes in the buffer are from the file.
    length: usize,
    /// The unreadable bytes, taken for zeros: the first offset, their number, the first error.
    pub(super) unreadable: Option<(u64, u64, String)>,
    /// The last result of [`Window::last_data`], with the offset at which that search began.
    last: Option<(u64, Option<u64>)>,
}

impl<'a> Window<'a> {
    /// The size of the buffer: the most bytes that can be viewed in one piece.
    pub(super) const BYTES: usize = 256 * 1024;

    /// Makes a window for files of `all` bytes in total: see [`Window::open`]. Fails if there is no
    /// memory.
    pub(super) fn new(
        disk: &'a mut dyn Disk,
        progress: Progress<'a>,
        all: u64,
    ) -> Result<Self, Error> {
        let mut buffer = interface::buffer(Self::BYTES, "to read a file")?;
        buffer.resize(Self::BYTES, 0);
        Ok(Self {
            disk,
            progress,
            before: 0,
            all,
            name: Name::Segment(0),
            size: 0,
            start: 0,
            buffer,
            length: 0,
            unreadable: None,
            last: None,
        })
    }

    /// Opens a file of `size` bytes in the window. Loads the file's beginning at once, because a
    /// file that cannot be read must prevent startup.
    pub(super) fn open(&mut self, name: Name, size: u64) -> Result<(), Error> {
        (self.name, self.size, self.start, self.length) = (name, size, 0, 0);
        (self.unreadable, self.last) = (None, None);
        self.load(0)
    }

    /// Closes the window's file, which had `size` bytes when the files were listed.
    pub(super) fn close(&mut self, size: u64) -> Result<(), Error> {
        self.disk.close(self.name);
        self.before += size;
        self.go_on(0)
    }

    /// The offset in the file after the last byte of the window's buffer.
    fn end(&self) -> u64 {
        self.start + self.length as u64
    }

    /// Reports to the progress function that the file is read up to the offset `read`. Fails if
    /// `progress` returns a break.
    fn go_on(&mut self, read: u64) -> Result<(), Error> {
        let is_over = (self.progress)(self.before + read, self.all).is_break();
        if is_over { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Returns bytes of the file from `offset` on: at least `wanted`, or fewer if the file ends
    /// before that. `wanted` is at most [`Window::BYTES`].
    pub(super) fn at(&mut self, offset: u64, wanted: usize) -> Result<&[u8], Error> {
        debug_assert!(wanted <= Self::BYTES);
        let end = self.end();
        let is_there = offset >= self.start
            && (offset + wanted as u64 <= end || (end >= self.size && offset <= end));
        if !is_there {
            self.load(offset)?;
        }
        let from = usize::try_from(offset - self.start).expect("within the window");
        Ok(self.buffer[..self.length].get(from..).unwrap_or_default())
    }

    /// Moves the window to begin at `offset`, and reads until the window is full or the file ends.
    fn load(&mut self, offset: u64) -> Result<(), Error> {
        let mut kept = 0;
        if (self.start..self.end()).contains(&offset) {
            let from = usize::try_from(offset - self.start).expect("within the window");
            self.buffer.copy_within(from..self.length, 0);
            kept = self.length - from;
        }
        (self.start, self.length) = (offset, kept);
        while self.length < Self::BYTES && self.end() < self.size {
            let at = self.end();
            let left = usize::try_from(self.size - at).unwrap_or(Self::BYTES);
            let length = left.min(Self::BYTES - self.length);
            let buffer = &mut self.buffer[self.length..][..length];
            match self.disk.read(self.name, at, buffer) {
                // The file is shorter than when it was listed.
                Ok(0) => self.size = at,
                Ok(read) => self.length += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                    self.length += self.skip_unreadable(at, length, &error);
                }
                Err(error) => {
                    let text = format!("{}: {error}", self.name);
                    return Err(io::Error::new(error.kind(), text).into());
                }
            }
        }
        self.go_on(self.end().min(self.size))
    }

    /// Reads from `at`, which is the end of the window, to the end of the page, but at most
    /// `length` bytes. If the disk cannot read these bytes, takes zeros for them.
    fn skip_unreadable(&mut self, at: u64, length: usize, error: &io::Error) -> usize {
        let page = PAGE_BYTES - at % PAGE_BYTES;
        let length = length.min(usize::try_from(page).expect("a page"));
        let page = &mut self.buffer[self.length..][..length];
        if let Ok(read @ 1..) = self.disk.read(self.name, at, page) {
            return read;
        }
        page.fill(0);
        let (_, lost, _) = self.unreadable.get_or_insert_with(|| (at, 0, error.to_string()));
        *lost += length as u64;
        length
    }

    /// Passes `length` bytes of the file, beginning at `offset`, to `act`, piece by piece.
    pub(super) fn for_each_part(
        &mut self,
        offset: u64,
        length: usize,
        mut act: impl FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (mut at, mut left) = (offset, length);
        while left > 0 {
            let bytes = self.at(at, 1)?;
            let count = bytes.len().min(left);
            if count == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            act(&bytes[..count])?;
            (at, left) = (at + count as u64, left - count);
        }
        Ok(())
    }

    /// Returns the offset of the first byte other than zero at or after `offset`. Does not read
    /// holes, if the file system reports where they are.
    pub(super) fn first_data(&mut self, offset: u64) -> Result<Option<u64>, Error> {
        let mut at = offset;
        while at < self.size {
            let bytes = self.at(at, 1)?;
            if let Some(found) = bytes.iter().position(|&byte| byte != 0) {
                return Ok(Some(at + found as u64));
            }
            at += bytes.len() as u64;
            if at < self.size {
                let Some(data) = self.disk.next_data(self.name, at)? else { return Ok(None) };
                at = data;
            }
        }
        Ok(None)
    }

    /// Returns the offset of the file's last byte other than zero, if that is at or after `offset`.
    /// Stores the result, because callers ask again with larger offsets.
    pub(super) fn last_data(&mut self, offset: u64) -> Result<Option<u64>, Error> {
        if let Some((_, last)) = self.last.filter(|&(from, _)| from <= offset) {
            return Ok(last.filter(|&last| last >= offset));
        }
        let mut last = None;
        let mut from = offset;
        while let Some(at) = self.first_data(from)? {
            let bytes = self.at(at, 1)?;
            let end = bytes.iter().rposition(|&byte| byte != 0).expect("the first is none");
            last = Some(at + end as u64);
            from = at + bytes.len() as u64;
        }
        self.last = Some((offset, last));
        Ok(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::{disk::Directory, go_on};

    fn with_file(bytes: &[u8], act: impl FnOnce(&mut Window<'_>)) {
        let root = tempfile::tempdir().expect("a directory");
        let mut disk = Directory::lock(root.path()).expect("the lock is free");
        let name = Name::Segment(1);
        disk.create(name).expect("created");
        disk.write(name, 0, bytes).expect("written");
        let mut progress = go_on;
        let mut window = Window::new(&mut disk, &mut progress, 0).expect("there is memory");
        window.open(name, bytes.len() as u64).expect("it can be read");
        act(&mut window);
    }

    #[test]
    fn a_window_shows_every_part_of_a_file_larger_than_itself() {
        let bytes: Vec<u8> = (0..=250).cycle().take(3 * Window::BYTES + 77).collect();
        with_file(&bytes, |window| {
            for offset in [0, 1, Window::BYTES - 1, Window::BYTES, 5, 2 * Window::BYTES + 9] {
                for wanted in [1, 100, Window::BYTES] {
                    let seen = window.at(offset as u64, wanted).expect("read").to_vec();
                    assert!(seen.len() >= wanted.min(bytes.len() - offset), "{offset} {wanted}");
                    assert!(bytes[offset..].starts_with(&seen), "{offset} {wanted}");
                }
            }
            assert_eq!(window.at(bytes.len() as u64, 10).expect("the end"), b"");
            let mut all = Vec::new();
            let each = window.for_each_part(7, 2 * Window::BYTES, |part| {
                all.extend_from_slice(part);
                Ok(())
            });
            each.expect("read");
            assert!(all == bytes[7..][..2 * Window::BYTES]);
        });
    }

    #[test]
    fn data_is_found_between_zeros() {
        let mut bytes = vec![0; 2 * Window::BYTES + 5000];
        with_file(&bytes, |window| {
            assert_eq!(window.first_data(0).expect("read"), None);
            assert_eq!(window.last_data(0).expect("read"), None);
        });
        let (first, last) = (Window::BYTES + 4097, 2 * Window::BYTES + 3);
        (bytes[first], bytes[last]) = (1, 2);
        with_file(&bytes, |window| {
            for from in [0, 5000, first] {
                assert_eq!(window.first_data(from as u64).expect("read"), Some(first as u64));
                assert_eq!(window.last_data(from as u64).expect("read"), Some(last as u64));
            }
            assert_eq!(window.first_data(first as u64 + 1).expect("read"), Some(last as u64));
            assert_eq!(window.last_data(last as u64 + 1).expect("read"), None);
        });
    }
}
