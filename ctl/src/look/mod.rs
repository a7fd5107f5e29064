//! Commands that change nothing.

pub(crate) mod big;
pub(crate) mod check;
pub(crate) mod grep;
pub(crate) mod job;
pub(crate) mod list;
pub(crate) mod report;
pub(crate) mod stats;
pub(crate) mod top;
mod top_screen;
pub(crate) mod tubes;

use serde_json::{Map, Value};

use crate::yaml;

/// Keys whose values are text, even if they look like numbers.
const TEXTS: [&str; 7] = ["id", "name", "tube", "version", "hostname", "os", "platform"];

/// Makes an object of a dictionary.
pub(crate) fn object(text: &str) -> Map<String, Value> {
    let value = |key: &str, text: &str| -> Value {
        if !TEXTS.contains(&key) {
            if let Ok(number) = text.parse::<u64>() {
                return number.into();
            }
            if let Ok(number) = text.parse::<f64>() {
                return number.into();
            }
            if let Ok(truth) = text.parse::<bool>() {
                return truth.into();
            }
        }
        text.into()
    };
    yaml::pairs(text).map(|(key, text)| (key.to_owned(), value(key, text))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_number_may_be_text() {
        let object = object("---\nname: 1.5\nready: 7\nutime: 0.25\ndraining: true\nid: 12\n");
        let text = Value::Object(object).to_string();
        let expected = r#"{"draining":true,"id":"12","name":"1.5","ready":7,"utime":0.25}"#;
        assert_eq!(text, expected);
    }
}
