use super::*;

const IDS: Ids = Ids { base: 40, round: 3 };

fn expected(source: &str) -> Pattern {
    Text::parse(source, Use::Expect).unwrap().pattern(IDS)
}

#[test]
fn a_script_can_send_any_byte_and_any_id() {
    let table: &[(&str, &[u8])] = &[
        ("put 0 0 60 1|x", b"put 0 0 60 1\r\nx"),
        (r"\r\n\0\t\\\|\%\{}", b"\r\n\0\t\\|%{}"),
        (r"\x00\xff\x20", b"\0\xff "),
        ("delete %2", b"delete 42"),
        ("delete %i, %i+10", b"delete 43, 53"),
        ("{a*5}{\\xff|*2}", b"aaaaa\xff\r\n\xff\r\n"),
        ("{%1 *2}{b*0}", b"41 41 "),
        ("{2*3*2}", b"2*32*3"),
        ("ä", "ä".as_bytes()),
    ];
    for (source, bytes) in table {
        let text = Text::parse(source, Use::Send).unwrap();
        assert_eq!(show(&text.bytes(IDS)), show(bytes), "{source}");
    }
}

#[test]
fn an_error_in_a_text_is_named() {
    let table = [
        (r"\q", r"unknown escape \q"),
        ("\\", "escapes nothing"),
        (r"\x1", "two hexadecimal digits"),
        (r"\x+1", "two hexadecimal digits"),
        ("%x", "% needs a number"),
        ("100%", "% needs a number"),
        ("%i+", "%i+ needs a number"),
        ("%99999999999999999999", "% needs a number"),
        ("{a*5", "{ without }"),
        ("{a*x}", "needs a number"),
        ("{*5}", "repeats nothing"),
        ("{a*4000000000}", "too much"),
        ("{number}", "is not {TEXT*N}"),
        ("{9..5}", "is not {TEXT*N}"),
        ("{int}", "only be expected"),
        ("{1..2}", "only be expected"),
    ];
    for (source, message) in table {
        let error = Text::parse(source, Use::Send).unwrap_err();
        assert!(error.contains(message), "{source}: {error}");
    }
    let error = Text::parse("{any}{int}", Use::Expect).unwrap_err();
    assert!(error.contains("followed by a literal"), "{error}");
}

#[test]
fn a_wrong_reply_is_distinguished_from_an_incomplete_one() {
    let table = [
        ("OK|", "", Match::Partial),
        ("OK|", "OK\r", Match::Partial),
        ("OK|", "OK\r\n", Match::Complete(4)),
        ("OK|", "OK\r\nmore", Match::Complete(4)),
        ("OK|", "OX", Match::Mismatch),
        ("INSERTED %1|", "INSERTED 41\r\n", Match::Complete(13)),
        ("INSERTED %1|", "INSERTED 4", Match::Partial),
        ("INSERTED %1|", "INSERTED 412\r\n", Match::Mismatch),
        ("n {int}|", "n 12", Match::Partial),
        ("n {int}|", "n -", Match::Partial),
        ("n {int}|", "n 12\r\n", Match::Complete(6)),
        ("n {int}|", "n -12\r\n", Match::Complete(7)),
        ("n {int}|", "n \r\n", Match::Mismatch),
        ("n {int}|", "n -\r\n", Match::Mismatch),
        ("n {int}|", "n 1x", Match::Mismatch),
        ("{57..60}|", "57\r\n", Match::Complete(4)),
        ("{57..60}|", "60\r\n", Match::Complete(4)),
        ("{57..60}|", "5", Match::Partial),
        ("{57..60}|", "56\r\n", Match::Mismatch),
        ("{57..60}|", "61\r\n", Match::Mismatch),
        ("{-1..1}|", "-1\r\n", Match::Complete(4)),
        ("v {any}|", "v x y", Match::Partial),
        ("v {any}|", "v x y\r", Match::Partial),
        ("v {any}|", "v x y\r\n", Match::Complete(7)),
        ("v {any}|", "v \r\n", Match::Complete(4)),
        ("v {any}|", "v x\ny\r\n", Match::Mismatch),
        ("v {any} z|", "v x y z\r\n", Match::Complete(9)),
        ("v {any} z|", "v x\r\nw z\r\n", Match::Mismatch),
    ];
    for (pattern, bytes, expected_match) in table {
        assert_eq!(
            expected(pattern).match_prefix(bytes.as_bytes()),
            expected_match,
            "{pattern} on {bytes:?}"
        );
    }
}

#[test]
fn a_line_of_a_body_is_compared_as_a_whole() {
    assert!(expected("pid: {int}").matches_line(b"pid: 12"));
    assert!(expected("os: {any}").matches_line(b"os: Linux 6"));
    assert!(expected("- {any}").matches_line(b"- "));
    assert!(!expected("pid: {int}").matches_line(b"pid: 12 "));
    assert!(!expected("pid").matches_line(b"pid\n"));
    assert!(!expected("pid: 1").matches_line(b"pid: 12"));
}

#[test]
fn what_is_shown_can_be_pasted_into_a_script() {
    let bytes = b"a|b\r\n\\ %1 {x\0\xff\r \n\taaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    let text = Text::parse(&show(bytes), Use::Send).unwrap();
    assert_eq!(text.bytes(IDS), bytes);
    assert_eq!(expected("a {int}{1..2}%2|{any}").show(), "a {int}{1..2}42|{any}");
    assert!(show(&b"ab".repeat(2000)).ends_with("more bytes)"));
}
