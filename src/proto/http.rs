//! Recognises HTTP requests, so that the daemon can close their connections.
//!
//! A web page can make a browser send an HTTP request to any port. A daemon that mistook the
//! request for commands would execute the lines of the request's body, which the page has chosen.

/// Whether `line`, the first line of a connection, begins an HTTP request. Any white space may
/// precede or separate the words of the line. If `is_whole` is false, `line` is only the beginning
/// of a line longer than any command.
///
/// Commands are lower case. If the first word is in upper case, the line is a request if this word
/// is `CONNECT`, or the second word is an address, or the third word is an HTTP version. Otherwise,
/// only a whole line with an HTTP version as its third word is a request.
pub fn is_http_request(line: &[u8], is_whole: bool) -> bool {
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let (Some(method), Some(target)) = (words.next(), words.next()) else { return false };
    let has_version = words.next().is_some_and(|version| version.starts_with(b"HTTP/"));
    if method.iter().all(|&byte| byte.is_ascii_uppercase() || byte == b'-') {
        let is_address = target.iter().any(|byte| b"/*:.".contains(byte));
        return is_address || has_version || method == b"CONNECT";
    }
    is_whole && has_version
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_from_commands() {
        let requests = [
            "GET / HTTP/1.1",
            "POST /x?y HTTP/1.0",
            "OPTIONS * HTTP/1.1",
            "x / HTTP/9",
            "GET /",
            "GET  /  HTTP/1.1",
            "\n\tGET\t/\nHost: h",
            "CONNECT h:80",
            "CONNECT localhost",
            "GET host.name",
            "GET http://h",
            "GET [::1]:80",
            "VERSION-CONTROL x HTTP/1.1",
        ];
        for line in requests {
            assert!(is_http_request(line.as_bytes(), true), "{line}");
        }
        let commands = [
            "",
            " ",
            "GET",
            "GET ",
            "get /",
            "stats",
            "use /",
            "use HTTP/1.1",
            "put 0 0 60 5",
            "put 0 0 HTTP/",
            "PUT 0 0 60 5",
            "USE default",
        ];
        for line in commands {
            assert!(!is_http_request(line.as_bytes(), true), "{line}");
        }
        let long = "a".repeat(300);
        for start in ["POST /", "GET http://", "GET /?x HTTP/1.1\n"] {
            assert!(is_http_request(format!("{start}{long}").as_bytes(), false), "{start}");
        }
        for start in ["use /", "use ", "watch http://", "", "GET "] {
            assert!(!is_http_request(format!("{start}{long}").as_bytes(), false), "{start}");
        }
    }
}
