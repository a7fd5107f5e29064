//! Any line, read by the daemon's parser and by one so plain that it can be seen correct: both
//! must come to the same command, or to the same refusal.
#![no_main]

use beanstalkd::proto::parse;
use libfuzzer_sys::fuzz_target;

mod reference;

fuzz_target!(|input: &[u8]| {
    // The two bytes in front choose what `-z` allows.
    let Some((limit, lines)) = input.split_at_checked(2) else { return };
    let limit = u32::from(u16::from_le_bytes([limit[0], limit[1]]));
    for line in lines.split(|&byte| byte == b'\n') {
        let (got, wanted) = (parse(line, limit), reference::read(line, limit));
        assert_eq!(got, wanted, "{}", line.escape_ascii());
    }
});
