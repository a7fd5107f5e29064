//! The subset of YAML in replies: a flat dictionary, a list, or a list of dictionaries.
//!
//! Quotes are only around whole values, so no full YAML parser is needed. A full parser would read
//! the name `1.5` of a tube as a number. Releases of beanstalkd differ in the values that
//! they quote.

use serde_json::{Map, Value};

/// Removes the quotes around a value of a reply's body, if there are any.
fn unquoted(value: &str) -> &str {
    value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value)
}

/// Returns each `key: value` of a dictionary in a reply's body, in order.
pub(crate) fn pairs(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter(|line| !line.starts_with("- ")).filter_map(|line| {
        let (key, value) = line.split_once(':')?;
        Some((key.trim(), unquoted(value.trim())))
    })
}

/// Returns the value of a key of a dictionary in a reply's body.
pub(crate) fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    pairs(text).find(|&(name, _)| name == key).map(|(_, value)| value)
}

/// The largest count, time or size; larger numbers are reduced to this limit. No server reaches
/// this limit, and the sum of thousands of numbers up to this limit does not overflow.
const NUMBER_MAX: u64 = 1 << 48;

/// Returns the numeric value of a key of a dictionary in a reply's body; 0 if the key has no
/// number.
pub(crate) fn number(text: &str, key: &str) -> u64 {
    let number: Option<u64> = value(text, key).and_then(|value| value.parse().ok());
    number.unwrap_or(0).min(NUMBER_MAX)
}

/// Returns each item of a list in a reply's body; in the body, a dictionary may precede the list.
pub(crate) fn items(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.strip_prefix("- ")).map(|item| unquoted(item.trim()))
}

/// Returns the text of each dictionary of a list in a reply's body.
pub(crate) fn dictionaries(text: &str) -> impl Iterator<Item = &str> {
    let begin = if text.starts_with("- ") { Some(2) } else { text.find("\n- ").map(|at| at + 3) };
    begin.map_or("", |begin| &text[begin..]).split("\n- ").filter(|part| !part.trim().is_empty())
}

/// Keys whose values are text, even if the values look like numbers.
const TEXT_KEYS: [&str; 7] = ["id", "name", "tube", "version", "hostname", "os", "platform"];

/// Converts a dictionary in a reply's body to a JSON object.
pub(crate) fn dictionary_to_json(text: &str) -> Map<String, Value> {
    let value = |key: &str, text: &str| -> Value {
        let value = serde_json::from_str(text).ok().filter(|_| !TEXT_KEYS.contains(&key));
        value.filter(|it: &Value| it.is_number() || it.is_boolean()).unwrap_or(text.into())
    };
    pairs(text).map(|(key, text)| (key.to_owned(), value(key, text))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dictionaries_are_read_with_and_without_quotes() {
        let text = "---\nname: \"a.b\"\ncurrent-jobs-ready: 7\nos: #1 SMP 12:30\nid: 0e5\n";
        assert_eq!(value(text, "name"), Some("a.b"));
        assert_eq!(number(text, "current-jobs-ready"), 7);
        assert_eq!(value(text, "os"), Some("#1 SMP 12:30"));
        assert_eq!(value(text, "id"), Some("0e5"));
        assert_eq!((value(text, "nothing"), number(text, "name")), (None, 0));
        assert_eq!(pairs(text).count(), 4);
    }

    #[test]
    fn lists_are_read() {
        assert_eq!(items("---\n- default\n- 1.5\n").collect::<Vec<_>>(), ["default", "1.5"]);
        let capabilities = "---\nstate: serving\nextensions:\n- capabilities\n- list-jobs\n";
        assert_eq!(items(capabilities).collect::<Vec<_>>(), ["capabilities", "list-jobs"]);
        assert_eq!(value(capabilities, "state"), Some("serving"));
        assert_eq!(items("---\n").count(), 0);
    }

    #[test]
    fn lists_of_dictionaries_are_read() {
        let text = "---\n- id: 1\n  pri: 2\n- id: 30\n  pri: 4\n  time-left: 5\n";
        let all: Vec<_> = dictionaries(text).collect();
        assert_eq!(all.len(), 2);
        assert_eq!((number(all[0], "id"), number(all[0], "pri")), (1, 2));
        assert_eq!((number(all[1], "id"), number(all[1], "time-left")), (30, 5));
        assert_eq!(value(all[0], "time-left"), None);
        assert_eq!(dictionaries("---\n").count(), 0);
    }

    #[test]
    fn what_looks_like_a_number_may_be_text() {
        let object =
            dictionary_to_json("---\nname: 1.5\nready: 7\nutime: 0.25\ndraining: true\nid: 12\n");
        let text = Value::Object(object).to_string();
        let expected = r#"{"draining":true,"id":"12","name":"1.5","ready":7,"utime":0.25}"#;
        assert_eq!(text, expected);
    }
}
