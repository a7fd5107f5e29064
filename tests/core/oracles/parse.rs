//! Any line, read by the daemon's parser and by a parser simple enough to be obviously correct:
//! both must return the same command, or the same error.

use beanstalkd::proto;

use super::reference;

/// Judges lines. The two bytes before them choose the limit of `-z`.
pub(crate) fn judge(input: &[u8]) {
    let Some((limit, lines)) = input.split_first_chunk() else { return };
    let limit = u32::from(u16::from_le_bytes(*limit));
    for line in lines.split(|&byte| byte == b'\n') {
        let got = proto::parse(line, limit).map(|(command, _)| command);
        let wanted = reference::read(line, limit);
        assert_eq!(got, wanted, "{}", line.escape_ascii());
        for is_whole in [true, false] {
            let got = proto::is_http_request(line, is_whole);
            assert_eq!(got, reference::is_http(line, is_whole), "{}", line.escape_ascii());
        }
    }
}
