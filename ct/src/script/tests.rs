use super::*;
use crate::dialect::MASKS;

/// Parses a text in which MASK means the first mask of the table.
fn parse(text: &str) -> Result<Script, ScriptError> {
    Script::parse("name", &text.replace("MASK", MASKS[0].name))
}

const GOOD: &str = "\
# A worker that waits
# gets its job.
proves Q4 E12
proves Q5
flags -z 100
fresh

a> put 0 0 60 1|x
a< INSERTED %1
a>> use de
b: connect
b: silent
b: urgent X
b: shutdown
b: closed
a: close
+2s
+500ms
a< OK
  ---
  - {any}
when MASK
a>
otherwise
repeat 3
a> delete %i+1
+1s
end
stop
end
repeat 2
when MASK
a< x
end
drain
end
";

#[test]
fn every_statement_of_the_language_is_understood() {
    let script = parse(GOOD).unwrap();
    assert_eq!(script.description, "A worker that waits gets its job.");
    assert_eq!(script.proves, ["Q4", "E12", "Q5"]);
    assert_eq!(script.flags, ["-z", "100"]);
    assert!(script.fresh);
    assert_eq!(script.lines.len(), 14);
    let last = script.lines.last().unwrap();
    assert!(matches!(last.statement, Statement::Repeat { rounds: 2, .. }));
    assert_eq!(last.number, 31);
    let masks: Vec<_> = script.masks().into_iter().collect();
    assert_eq!(masks, [MASKS[0].name]);
    assert_eq!(script.total_delay(), Duration::from_millis(5500));
}

#[test]
fn a_script_that_affects_others_needs_its_own_daemon() {
    let needs = |head: &str, tail: &str| {
        let text = format!("# s\nproves Q1\n{head}a> stats\n{tail}");
        parse(&text).unwrap().needs_own_daemon()
    };
    assert!(!needs("", ""));
    assert!(needs("fresh\n", ""));
    assert!(needs("flags -z 9\n", ""));
    assert!(needs("", "repeat 1\ndrain\nend\n"));
}

#[test]
fn every_error_is_reported_with_its_line() {
    let table = [
        ("a> x", 1, "no description"),
        ("# s\na> x", 1, "proves nothing"),
        ("# s\nproves Q1", 2, "no statement"),
        ("# s\nproves\na> x", 2, "needs words"),
        ("# s\nproves Q1\na> x \nb> y", 3, "blanks at the end"),
        ("# s\nproves Q1\na> x\r\nb> y", 3, "blanks at the end"),
        ("# s\nproves Q1\na> x\nflags -z 1", 4, "before the first"),
        ("# s\nproves Q1\na> x\nfresh", 4, "before the first"),
        ("# s\nproves Q1\nfresh air", 3, "not a statement"),
        ("# s\nproves Q1\na>x", 3, "a space must follow"),
        ("# s\nproves Q1\na>>", 3, "nothing to send"),
        ("# s\nproves Q1\nA> x", 3, "not a statement"),
        ("# s\nproves Q1\n1a> x", 3, "not a statement"),
        ("# s\nproves Q1\nquit", 3, "not a statement"),
        ("# s\nproves Q1\n  a> x", 3, "indented"),
        ("# s\nproves Q1\na: sings", 3, "cannot `sings`"),
        ("# s\nproves Q1\na: urgent XY", 3, "exactly one byte"),
        ("# s\nproves Q1\na< OK\nb> x", 3, "indented lines"),
        ("# s\nproves Q1\na< OK\n  - {int\nb> x", 4, "{ without }"),
        ("# s\nproves Q1\na> {int}", 3, "only be expected"),
        ("# s\nproves Q1\na> %i", 3, "only inside repeat"),
        ("# s\nproves Q1\n+2", 3, "+Ns or +Nms"),
        ("# s\nproves Q1\n+1.5s", 3, "+Ns or +Nms"),
        ("# s\nproves Q1\nwhen typo\nend", 3, "no mask `typo`"),
        ("# s\nproves Q1\nwhen MASK\na> x", 3, "without `end`"),
        ("# s\nproves Q1\nwhen MASK\nwhen MASK", 4, "another when"),
        ("# s\nproves Q1\nwhen MASK\notherwise\notherwise", 5, "a second"),
        ("# s\nproves Q1\nwhen MASK\nproves Q2", 4, "cannot be in a when"),
        ("# s\nproves Q1\na> x\nend", 4, "`end` without"),
        ("# s\nproves Q1\na> x\notherwise", 4, "without when"),
        ("# s\nproves Q1\nrepeat x\nend", 3, "needs a number"),
        ("# s\nproves Q1\nrepeat 2\nrepeat 2\nend\nend", 4, "another repeat"),
        ("# s\nproves Q1\nrepeat 2\na> x", 3, "without `end`"),
        ("# s\nproves Q1\nrepeat 2\notherwise", 4, "without when"),
    ];
    for (text, line, message) in table {
        let error = parse(text).unwrap_err();
        assert_eq!(error.line, line, "{text:?}: {error}");
        let found = error.message.contains(message) || message == "no description";
        assert!(found, "{text:?}: {error}");
        assert!(error.to_string().starts_with(&format!("name.txt:{line}: ")), "{error}");
    }
}
