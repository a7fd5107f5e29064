//! HTTP, to be recognised and refused.
//!
//! A browser can be tricked into sending a request to any port. Its lines would be answered one by
//! one, each unknown, until those of its body, which the page that tricks it has written.

/// Whether the first line of a connection is that of an HTTP request. Where the line is longer
/// than any of ours, only its beginning is there.
pub fn is_http_request(line: &[u8], is_whole: bool) -> bool {
    let mut words = line.splitn(3, |&byte| byte == b' ');
    let (Some(_method), Some(target)) = (words.next(), words.next()) else { return false };
    if is_whole {
        return words.next().is_some_and(|version| version.starts_with(b"HTTP/"));
    }
    target.starts_with(b"/") || target.windows(3).any(|part| part == b"://")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_from_commands() {
        for line in ["GET / HTTP/1.1", "POST /x?y HTTP/1.0", "OPTIONS * HTTP/1.1", "x / HTTP/9"] {
            assert!(is_http_request(line.as_bytes(), true), "{line}");
        }
        for line in ["", "GET", "GET /", "stats", "use HTTP/1.1", "put 0 0 60 5", "put 0 0 HTTP/"] {
            assert!(!is_http_request(line.as_bytes(), true), "{line}");
        }
        assert!(is_http_request(format!("POST /{}", "a".repeat(300)).as_bytes(), false));
        assert!(is_http_request(format!("GET http://{}", "a".repeat(300)).as_bytes(), false));
        assert!(!is_http_request(format!("use {}", "a".repeat(300)).as_bytes(), false));
        assert!(!is_http_request("a".repeat(300).as_bytes(), false));
    }
}
