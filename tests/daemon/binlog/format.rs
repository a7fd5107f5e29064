//! A second implementation of the binlog's format, written from its description and not from the
//! daemon's code: the oracle of these tests.

/// A record of a version 7 segment, its position, and its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    pub(crate) at: usize,
    pub(crate) bytes: &'a [u8],
    pub(crate) id: u64,
    /// 0 deleted, 1 ready, 2 reserved, 3 buried, 4 delayed.
    pub(crate) state: u8,
    /// The tube, and the body with its CR LF; `None` in a short record.
    pub(crate) full: Option<(&'a str, &'a [u8])>,
    /// The eighty bytes that both kinds of record have.
    pub(crate) facts: &'a [u8],
}

/// Returns all records of an undamaged segment, segment headers included.
pub(crate) fn records(segment: &[u8]) -> Vec<Record<'_>> {
    assert_eq!(segment[..4], 7u32.to_le_bytes(), "version 7");
    let mut records = Vec::new();
    let mut at = 4;
    while let Some(record) = record_at(segment, at) {
        at += record.bytes.len();
        records.push(record);
    }
    assert!(segment[at..].iter().all(|&byte| byte == 0), "zeros follow the last record");
    records
}

/// Returns the end of the last record of an undamaged segment.
pub(crate) fn end(segment: &[u8]) -> usize {
    records(segment).last().map_or(4, |last| last.at + last.bytes.len())
}

fn record_at(segment: &[u8], at: usize) -> Option<Record<'_>> {
    let number = |at: usize| u32::from_le_bytes(segment[at..at + 4].try_into().expect("four"));
    if segment.len() < at + 84 {
        return None;
    }
    let name = number(at) as usize;
    let facts_at = at + 4 + name;
    let facts = &segment[facts_at..facts_at + 80];
    let id = u64::from_le_bytes(facts[..8].try_into().expect("eight"));
    if id == 0 {
        return None;
    }
    let body_at = facts_at + 80;
    let body_length = if name > 0 { number(facts_at + 32) as usize } else { 0 };
    let end = body_at + body_length;
    let full = (name > 0).then(|| {
        let tube = std::str::from_utf8(&segment[at + 4..facts_at]).expect("a tube's name");
        (tube, &segment[body_at..end])
    });
    Some(Record { at, bytes: &segment[at..end], id, state: facts[76], full, facts })
}
