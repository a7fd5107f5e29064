use proptest::prelude::*;

use super::*;

const SALT: u64 = 0x0123_4567_89AB_CDEF;

fn fields(kind: Kind) -> JobFields {
    JobFields {
        id: 0x1122_3344_5566_7788,
        pri: 0x99AA_BBCC,
        delay: 5_000_000_000,
        ttr: 60_000_000_000,
        body_size: 7,
        created_at: 1_700_000_000_000_000_001,
        deadline_at: 1_700_000_005_000_000_002,
        history: History { reserves: 1, timeouts: 2, releases: 3, buries: 4, kicks: 5 },
        kind,
    }
}

fn encoded(full: Option<(&str, &[u8])>) -> Vec<u8> {
    let mut out = vec![0xFF; 9];
    let (name, body) = full.unwrap_or(("", b""));
    NewRecord { fields: fields(Kind::Delayed), name, body }.encode(SALT, 9, &mut out);
    out.extend_from_slice(body);
    out
}

/// A record: its fields, its tube name and body if the record is full, and its length.
type Record<'a> = (JobFields, Option<(&'a str, &'a [u8])>, usize);

/// Decodes the record at the beginning of `bytes`; `None` at the end of the records.
fn decode(bytes: &[u8], offset: u64, format: Format) -> Result<Option<Record<'_>>, Damage> {
    let Some(frame) = Frame::decode(bytes, format)? else { return Ok(None) };
    let length = frame.head_length + frame.body_length;
    let body = bytes.get(frame.head_length..length).ok_or(Damage::Torn)?;
    if let Format::Salted(salt) = format {
        let (hasher, wanted) = frame.begin_checksum(&bytes[..length], salt, offset);
        if hasher.finalize() != wanted {
            return Err(Damage::Checksum);
        }
    }
    frame.judge(body.last_chunk::<2>().map_or(&[], |end| end))?;
    let name = frame.is_full().then(|| frame.name(bytes)).flatten();
    Ok(Some((frame.fields, name.map(|name| (name, body)), length)))
}

/// If a field had another offset, the original would read a wrong value.
#[test]
fn every_field_stands_where_the_original_has_it() {
    let bytes = encoded(Some(("ab", b"hello\r\n")));
    let record = &bytes[9..];
    assert_eq!(record[..6], *b"\x02\0\0\0ab");
    let fields = &record[6..86];
    assert_eq!(
        fields[..12],
        [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0xCC, 0xBB, 0xAA, 0x99]
    );
    assert_eq!(fields[16..24], 5_000_000_000i64.to_le_bytes());
    assert_eq!(fields[24..32], 60_000_000_000i64.to_le_bytes());
    assert_eq!(fields[32..40], [7, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(fields[40..48], 1_700_000_000_000_000_001i64.to_le_bytes());
    assert_eq!(fields[48..56], 1_700_000_005_000_000_002i64.to_le_bytes());
    assert_eq!(fields[56..76], [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0]);
    assert_eq!(fields[76..], [4, 0, 0, 0]);
    assert_eq!(record[86..], *b"hello\r\n");
}

#[test]
fn a_record_is_read_as_it_was_written() {
    for full in [None, Some(("t", &b"1234 \r\n"[..]))] {
        let bytes = encoded(full);
        let record = (fields(Kind::Delayed), full, bytes.len() - 9);
        for format in [Format::Plain, Format::Salted(SALT)] {
            assert_eq!(decode(&bytes[9..], 9, format), Ok(Some(record)));
        }
        assert_eq!(decode(&[], 9, Format::Plain), Ok(None));
    }
    assert_eq!(encoded(None).len(), 9 + SHORT_RECORD_BYTES);
}

/// If a flipped bit in a name, a field or a body went unnoticed, a job would be changed.
#[test]
fn no_flipped_bit_goes_unnoticed() {
    let bytes = encoded(Some(("tube", b"12345\r\n")));
    for bit in 9 * 8..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let found = decode(&bytes[9..], 9, Format::Salted(SALT));
        assert!(!matches!(found, Ok(Some(_))), "bit {bit}: {found:?}");
    }
}

/// If a record were valid at any offset, bodies that look like records could be read as records.
#[test]
fn a_record_is_valid_only_at_its_offset_in_its_segment() {
    let bytes = encoded(None);
    assert_eq!(decode(&bytes[9..], 9, Format::Salted(SALT + 1)), Err(Damage::Checksum));
    assert_eq!(decode(&bytes[9..], 8, Format::Salted(SALT)), Err(Damage::Checksum));
}

#[test]
fn zeros_and_the_end_of_the_file_are_the_end() {
    for length in 0..200 {
        for format in [Format::Plain, Format::Salted(SALT), Format::Five] {
            assert_eq!(decode(&vec![0; length], 0, format), Ok(None), "{length}");
        }
    }
}

#[test]
fn damage_is_named() {
    let truncated = |length: usize| encoded(Some(("tube", b"12345\r\n")))[9..9 + length].to_vec();
    for length in [3, 5, 40, 87, 94] {
        assert_eq!(decode(&truncated(length), 0, Format::Plain), Err(Damage::Torn), "{length}");
    }
    let changed = |at: usize, byte| {
        let mut bytes = encoded(Some(("tube", b"12345\r\n")))[9..].to_vec();
        bytes[at] = byte;
        decode(&bytes, 0, Format::Plain).unwrap_err()
    };
    for (at, byte, part) in [
        (0, 201, "tube name"),
        (3, 0x80, "tube name"),
        (4, 0xFF, "tube name"),
        (8 + 32, 1, "body size"),
        (8 + 35, 0x80, "body size"),
        (8 + 76, 9, "state"),
    ] {
        let damage = changed(at, byte).to_string();
        assert!(damage.contains(part), "{damage}");
    }
}

#[test]
fn version_5_counts_in_microseconds() {
    let mut bytes = 4u64.to_le_bytes().to_vec();
    bytes.extend_from_slice(b"tube");
    let mut body = Vec::new();
    fields(Kind::Buried).write(&mut body);
    bytes.extend_from_slice(&body[..FIELDS_5_BYTES]);
    bytes.extend_from_slice(b"12345\r\n");
    let Ok(Some((fields, full, length))) = decode(&bytes, 0, Format::Five) else {
        panic!("a record");
    };
    assert_eq!(full, Some(("tube", &b"12345\r\n"[..])));
    assert_eq!(fields.ttr, 60_000_000_000_000);
    assert_eq!((fields.kind, length), (Kind::Buried, bytes.len()));
}

/// If a tube's name passed for a header, a client could name a tube so that a segment of the
/// original looks like one of this daemon, and none of that segment's records could be read.
#[test]
fn a_tube_name_is_not_taken_for_a_segment_header() {
    let (key, number) = (0xFEDC_BA98_7654_3210, 5);
    let written = SegmentHeader { key, next_id: 7, seen_below: 9 };
    let mut header = Vec::new();
    written.encode(salt(key, number), 0, &mut header);
    assert!(SegmentHeader::is_likely(&header));
    assert_eq!(SegmentHeader::at(&header, number, 0), Some(written));
    assert_eq!(SegmentHeader::at(&header, number + 1, 0), None, "it was copied");
    let name = "x".repeat(40) + "bnstlkRK" + &"x".repeat(60);
    let mut bytes = Vec::new();
    let record = NewRecord { fields: fields(Kind::Ready), name: &name, body: b"\r\n" };
    record.encode(SALT, 0, &mut bytes);
    assert_eq!(bytes[44..52], HEADER_MAGIC.to_le_bytes());
    assert!(!SegmentHeader::is_likely(&bytes));
    for byte in 0..header.len() {
        let mut header = header.clone();
        header[byte] ^= 1;
        assert_eq!(SegmentHeader::at(&header, number, 0), None);
        assert!(SegmentHeader::is_likely(&header), "byte {byte}");
    }
}

proptest! {
    /// If some bytes on the disk caused a panic, the daemon could not start.
    #[test]
    fn any_bytes_decode_without_a_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        offset in 0..310usize,
        small in any::<bool>(),
    ) {
        let mut bytes = bytes;
        if small && bytes.len() > 4 {
            // If the name's length is small, and so legal, more of the record is decoded.
            bytes[0] %= 8;
            bytes[1..4].fill(0);
        }
        for format in [Format::Plain, Format::Salted(SALT), Format::Five] {
            let _ = decode(bytes.get(offset..).unwrap_or_default(), offset as u64, format);
            let _ = decode(&bytes, 0, format);
        }
    }
}
