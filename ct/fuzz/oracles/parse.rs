//! Any line, parsed by the daemon and by a reference parser that is simple enough to be seen
//! correct. Both must return the same command, or the same error.

use beanstalkd::proto;

use crate::reference;

/// Checks lines; the first two bytes are the limit of `-z`.
pub(crate) fn check(input: &[u8]) {
    let Some((limit, lines)) = input.split_first_chunk() else { return };
    let limit = u32::from(u16::from_le_bytes(*limit));
    for line in lines.split(|&byte| byte == b'\n') {
        let (got, wanted) = (proto::parse(line, limit), reference::read(line, limit));
        assert_eq!(got, wanted, "{}", line.escape_ascii());
        for is_whole in [true, false] {
            let got = proto::is_http_request(line, is_whole);
            assert_eq!(got, reference::is_http(line, is_whole), "{}", line.escape_ascii());
        }
    }
}
