//! The documents and the code must agree: every rule has a proof, every mask its line and its use,
//! every flag its place in usage, operations.md and manual.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use beanstalkd::cli;
use ct::{Dialect, Script, dialect::MASKS, skip};

/// Rules that have no proof yet.
const DEFERRED: [&str; 0] = [];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every `**[X1]**` of a document.
fn marks(document: &str) -> BTreeSet<String> {
    let after = document.split("**[").skip(1);
    after.filter_map(|rest| rest.split_once("]**")).map(|(mark, _)| mark.to_owned()).collect()
}

fn numbered(letter: char, last: u32) -> BTreeSet<String> {
    (1..=last).map(|number| format!("{letter}{number}")).collect()
}

fn scripts() -> Vec<Script> {
    Script::load_dir(&root().join("tests/golden")).expect("the golden scripts are well formed")
}

/// Finds the files below a folder whose names have this extension.
fn files(folder: &Path, extension: &str, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("the folder can be read").path();
        if path.is_dir() && path.ends_with("target") {
            // Build results are not sources.
        } else if path.is_dir() {
            files(&path, extension, into);
        } else if path.extension().is_some_and(|it| it == extension) {
            into.push(path);
        }
    }
}

fn rust_sources(folder: &Path, into: &mut Vec<PathBuf>) {
    files(folder, "rs", into);
}

/// The tests that prove each rule: `proves` in scripts, `Proves:` above functions.
fn proofs() -> BTreeMap<String, Vec<String>> {
    let mut proofs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for script in scripts() {
        for rule in script.proves {
            proofs.entry(rule).or_default().push(script.name.clone());
        }
    }
    let mut sources = Vec::new();
    rust_sources(&root().join("tests"), &mut sources);
    rust_sources(&root().join("src"), &mut sources);
    for source in sources {
        let text = fs::read_to_string(&source).expect("a source can be read");
        for line in text.lines() {
            let Some(rules) = line.trim().strip_prefix("/// Proves: ") else { continue };
            for rule in rules.trim_end_matches('.').split(", ") {
                proofs.entry(rule.to_owned()).or_default().push(source.display().to_string());
            }
        }
    }
    proofs
}

/// A rule that nothing proves is a promise that nobody keeps.
#[test]
fn every_rule_has_a_proof() {
    let mut rules = marks(&read("doc/protocol.md"));
    rules.extend(marks(&read("doc/differences.md")));
    let mut wanted = numbered('Q', 27);
    wanted.extend(numbered('E', 29));
    wanted.extend(numbered('B', 35));
    assert_eq!(rules, wanted, "protocol.md and differences.md name each rule");

    let proofs = proofs();
    let deferred: BTreeSet<_> = DEFERRED.iter().map(|rule| (*rule).to_owned()).collect();
    let unproved: Vec<_> =
        rules.difference(&deferred).filter(|rule| !proofs.contains_key(*rule)).collect();
    assert!(unproved.is_empty(), "no script and no test proves {unproved:?}");
    let early: Vec<_> = deferred.iter().filter(|rule| proofs.contains_key(*rule)).collect();
    assert!(early.is_empty(), "these are proved and need no deferring: {early:?}");
    let unknown: Vec<_> = proofs
        .keys()
        .filter(|rule| rule.starts_with(|first: char| first.is_ascii_uppercase()))
        .filter(|rule| !rules.contains(*rule))
        .collect();
    assert!(unknown.is_empty(), "no document has these rules: {unknown:?}");
}

/// Every command of the protocol is proved by some script.
#[test]
fn every_command_has_a_script() {
    let proofs = proofs();
    let missing: Vec<_> =
        beanstalkd::proto::command_names().filter(|name| !proofs.contains_key(*name)).collect();
    assert!(missing.is_empty(), "no script says `proves` for {missing:?}");
}

/// A mask hides a difference: it must have a line with the reason, and a script that needs it.
/// tests/daemon/golden.rs checks that a run uses it.
#[test]
fn every_mask_is_explained_and_used() {
    let differences = read("doc/differences.md");
    let used: BTreeSet<_> = scripts().iter().flat_map(Script::masks).collect();
    for mask in MASKS {
        let line = format!("| `{}` |", mask.name);
        assert!(differences.contains(&line), "differences.md lacks {}", mask.name);
        assert!(used.contains(mask.name), "no script uses {}", mask.name);
    }
    assert_eq!(used, Dialect::all_masks());
}

/// `-h`, the page for operators and the manual must describe the same flags.
#[test]
fn every_flag_is_in_usage_operations_and_manual() {
    let (usage, page, manual) = (cli::usage(), read("doc/operations.md"), read("beanstalkd.1"));
    let rows = page.replace('`', "");
    for flag in cli::FLAGS {
        let (synopsis, entry) = (flag.synopsis, manual_entry(flag));
        let is_there = [' ', '\n'].iter().any(|end| usage.contains(&format!(" {synopsis}{end}")));
        assert!(is_there, "-h lacks {synopsis}");
        let row = format!("| {synopsis} | {} |", flag.help);
        assert!(rows.contains(&row), "operations.md lacks {row}");
        assert!(manual.contains(&entry), "the manual lacks {entry}");
        for number in flag.help.split(|c: char| !c.is_ascii_digit()) {
            assert!(manual.contains(number), "the manual lacks {number} of {synopsis}");
        }
    }
    let entries = page.lines().filter(|line| line.starts_with("| `-")).count();
    assert_eq!(entries, cli::FLAGS.len(), "operations.md has no flags but these");
    let (options, _) = manual.split_once(".SH SIGNALS").expect("a section on signals");
    let entries = options.matches(".TP\n").count();
    assert_eq!(entries, cli::FLAGS.len(), "the manual has no flags but these");
}

/// A reader would install a library, or a version of it, that was never tried.
#[test]
fn the_readme_has_the_tested_clients() {
    let (readme, runner) = (read("README.md"), read("ct/clients/run"));
    let libraries = runner.split_once("\nLIBRARIES = {\n").expect("a table of libraries").1;
    let pinned = libraries.split("package=\"").skip(1).map(|entry| {
        let words: Vec<&str> = entry.split('"').collect();
        BTreeSet::from(["==", "@"].map(|mark| format!("install {}{mark}{}", words[0], words[2])))
    });
    let of_debian = libraries.split("packages=[").skip(1).map(|entry| {
        let package = entry.split(']').next().and_then(|list| list.rsplit('"').nth(1));
        BTreeSet::from([format!("apt install {}", package.expect("a package"))])
    });
    let wanted: BTreeSet<_> = pinned.chain(of_debian).collect();
    let table = readme.split_once("\n| language |").expect("a table of clients").1;
    let table = table.split("\n\n").next().expect("a part").replace("cargo add", "cargo install");
    let rows: Vec<&str> = table.lines().skip(2).collect();
    assert_eq!(rows.len(), wanted.len(), "{rows:?}");
    for lines in wanted {
        let has_row = rows.iter().any(|row| lines.iter().any(|line| row.contains(line)));
        assert!(has_row, "README lacks {lines:?}");
    }
}

/// The heading of a flag's paragraph: bold names, and its argument in italics.
fn manual_entry(flag: &cli::Flag) -> String {
    let names: Vec<_> = flag.names().map(|name| name.replace('-', "\\-")).collect();
    match (&names[..], flag.argument()) {
        ([name], None) => format!(".TP\n.B {name}\n"),
        ([name], Some(argument)) => format!(".TP\n.BI {name} \" {argument}\"\n"),
        (names, None) => format!(".TP\n.BR {}\n", names.join(" \", \" ")),
        (names, Some(argument)) => {
            format!(".TP\n.BR {} \" \\fI{argument}\"\n", names.join(" \", \" "))
        }
    }
}

/// A shell would offer a flag that does not exist, or not one that does.
#[test]
fn every_flag_is_completed() {
    let [bash, zsh, fish] =
        ["bash", "zsh", "fish"].map(|shell| read(&format!("pkg/completions/beanstalkd.{shell}")));
    let (mut names, mut names_with_argument) = (BTreeSet::new(), BTreeSet::new());
    for flag in cli::FLAGS {
        // A description is the beginning of the help text.
        let has = |text: &str, start: &str, end: &str| {
            let found = text.split_once(start).and_then(|(_, rest)| rest.split_once(end));
            found.is_some_and(|(description, _)| flag.help.starts_with(description))
        };
        let mut options = Vec::new();
        for name in flag.names() {
            let (option, joint) = match name.strip_prefix("--") {
                Some(long) => (format!("-l {long}"), "="),
                None => (name.replace('-', "-s "), "+"),
            };
            options.push(option);
            names.insert(name);
            let (joint, end) = flag.argument().map_or(("", "]'".to_owned()), |argument| {
                names_with_argument.insert(name);
                (joint, format!("]:{argument}:"))
            });
            assert!(has(&zsh, &format!("'*{name}{joint}["), &end), "zsh: {name}");
        }
        let end = flag.argument().map_or("'\n", |_| "' -x");
        let options = options.join(" ");
        assert!(has(&fish, &format!("beanstalkd {options} -d '"), end), "fish: {options}");
    }
    assert_eq!(zsh.matches("'*-").count(), names.len());
    assert_eq!(fish.matches(" -d ").count(), cli::FLAGS.len());
    let list = bash.split_once("flags='").and_then(|(_, rest)| rest.split_once('\''));
    let (list, cases) = list.expect("bash has a list");
    assert_eq!(list.split_whitespace().collect::<BTreeSet<_>>(), names);
    let patterns = cases.lines().filter_map(|line| Some(line.trim().split_once(')')?.0));
    let patterns = patterns.filter(|it| it.starts_with('-')).flat_map(|it| it.split('|'));
    assert_eq!(patterns.collect::<BTreeSet<_>>(), names_with_argument);
}

/// A shell would print an error at each keystroke, because it cannot parse its completions.
#[test]
fn shells_take_their_completions() {
    let file = |shell: &str| root().join(format!("pkg/completions/beanstalkd.{shell}"));
    for shell in ["bash", "zsh", "fish"] {
        match Command::new(shell).arg("-n").arg(file(shell)).output() {
            Err(_) => skip(&format!("there is no {shell}")),
            Ok(output) => {
                let stderr = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success() && stderr.is_empty(), "{shell}: {stderr}");
            }
        }
    }
    let complete = |before: &str, word: &str| {
        let script = r#"source "$0"; _beanstalkd beanstalkd "$2" "$1"; echo "${COMPREPLY[@]}""#;
        let mut bash = Command::new("bash");
        let output = bash.args(["-c", script]).arg(file("bash")).args([before, word]).output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Ok(found) = complete("beanstalkd", "--bin") else { return };
    assert_eq!(found, "--binlog --binlog-size");
    assert_eq!(complete("-p", "").expect("bash"), "");
    assert!(complete("-u", "roo").expect("bash").contains("root"));
    assert!(complete("-V", "-").expect("bash").contains("--max-job-size"));
}

/// The manual must be displayed without warnings.
#[test]
fn the_manual_is_sound() {
    let page = root().join("beanstalkd.1");
    let tools: [&[&str]; 2] =
        [&["mandoc", "-Tlint"], &["man", "--warnings", "--local-file", "--ditroff"]];
    for tool in tools {
        let mut command = Command::new(tool[0]);
        command.args(&tool[1..]).arg(&page).env("LC_ALL", "C.UTF-8").env("MANROFFSEQ", "");
        let Ok(output) = command.output() else {
            skip(&format!("there is no {}", tool[0]));
            continue;
        };
        let complaints = match tool[0] {
            "mandoc" => output.stdout,
            _ => output.stderr,
        };
        assert!(
            output.status.success() && complaints.is_empty(),
            "{tool:?}: {}",
            String::from_utf8_lossy(&complaints)
        );
    }
}

/// The version of the package must be the same everywhere.
#[test]
fn versions_agree() {
    let version = env!("CARGO_PKG_VERSION");
    assert!(read("CHANGELOG.md").contains(&format!("\n## {version} ")));
    assert!(read("beanstalkd.1").lines().next().is_some_and(|head| head.contains(version)));
}

/// A link to a missing file or heading leads nowhere.
#[test]
fn links_lead_somewhere() {
    let mut pages = Vec::new();
    for folder in [".github", "ct", "doc", "pkg", "tests"] {
        files(&root().join(folder), "md", &mut pages);
    }
    let top = fs::read_dir(root()).expect("the root can be read");
    let top = top.map(|entry| entry.expect("an entry can be read").path());
    pages.extend(top.filter(|path| path.extension().is_some_and(|it| it == "md")));
    check_links(&pages);
}

/// The same for the links of installed pages, which have other files beside them.
#[test]
fn installed_links_lead_somewhere() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let written = Command::new(root().join("pkg/pages")).arg(folder.path()).status();
    assert!(written.expect("pkg/pages starts").success());
    let mut pages = Vec::new();
    files(folder.path(), "md", &mut pages);
    check_links(&pages);
}

fn check_links(pages: &[PathBuf]) {
    assert!(!pages.is_empty(), "there are no pages");
    for page in pages {
        let text = fs::read_to_string(page).expect("a page can be read");
        let links = ["](", "src=\"", "srcset=\""].into_iter().flat_map(|mark| {
            let rests = text.split(mark).skip(1);
            rests.filter_map(|rest| rest.split([')', '"']).next())
        });
        for link in links.filter(|link| !link.contains("://")) {
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let folder = page.parent().expect("a page has a folder");
            let target = if path.is_empty() { page.clone() } else { folder.join(path) };
            assert!(target.exists(), "{} links to {link}", page.display());
            if !heading.is_empty() {
                let text = fs::read_to_string(&target).expect("a page can be read");
                let mut headings = text.lines().filter(|line| line.starts_with('#')).map(anchor);
                assert!(headings.any(|it| it == heading), "{} links to {link}", page.display());
            }
        }
    }
}

/// Returns the name under which a heading can be linked to.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
    text.chars().filter(|it| it.is_alphanumeric() || matches!(it, '-' | '_')).collect()
}

/// The formatter does not break long comments and texts.
#[test]
fn no_line_of_rust_is_longer_than_100_columns() {
    let mut sources = Vec::new();
    for folder in ["src", "tests", "ct", "ctl"] {
        rust_sources(&root().join(folder), &mut sources);
    }
    for path in sources {
        let text = fs::read_to_string(&path).expect("it can be read");
        for (number, line) in (1..).zip(text.lines()) {
            let columns = line.chars().count();
            assert!(columns <= 100, "{}:{number} has {columns} columns", path.display());
        }
    }
}

/// Memory would again be asked for everywhere, and a place that forgets it be found by an attack.
#[test]
fn few_places_know_of_memory() {
    const PLACES: usize = 48;
    const FILES: usize = 14;
    const WORDS: [&str; 9] = [
        "Level",
        "Growing",
        "Supply",
        "SystemMemory",
        "OutOfMemory",
        "admit",
        "admits",
        "probe",
        "try_reserve_exact",
    ];
    let is_its_own = |path: &Path| {
        // These files implement the checks, or mean levels of logs.
        let of =
            ["src/memory", "src/server/admission.rs", "src/collections/growth.rs", "src/service"];
        of.iter().any(|part| path.starts_with(root().join(part))) || path.ends_with("testing.rs")
    };
    let mut sources = Vec::new();
    rust_sources(&root().join("src"), &mut sources);
    let (mut places, mut found) = (0, Vec::new());
    for path in sources.into_iter().filter(|path| !is_its_own(path)) {
        let text = fs::read_to_string(&path).expect("it can be read");
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        let words =
            lines.flat_map(|line| line.split(|it: char| !it.is_alphanumeric() && it != '_'));
        let count = words.filter(|word| WORDS.contains(word)).count();
        if count > 0 {
            places += count;
            found.push(format!("{count} {}", path.display()));
        }
    }
    assert!(places <= PLACES && found.len() <= FILES, "{places} places: {found:#?}");
}

/// The names behind `crate::` in a text, those of a list in braces one by one.
fn modules_used(code: &str) -> BTreeSet<String> {
    let word = |text: &str| {
        text.chars().take_while(|&it| it.is_alphanumeric() || it == '_').collect::<String>()
    };
    let mut used = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        let Some(list) = rest.strip_prefix('{') else {
            used.insert(word(rest));
            continue;
        };
        let (mut depth, mut is_name) = (0, true);
        for (at, character) in list.char_indices() {
            match character {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => is_name = true,
                _ if is_name && !character.is_whitespace() => {
                    used.insert(word(&list[at..]));
                    is_name = false;
                }
                _ => {}
            }
        }
    }
    used
}

/// The modules that a file declares.
fn modules_of(file: &str) -> BTreeSet<String> {
    let name = |line: &str| {
        let line = line.strip_prefix("pub ").unwrap_or(line);
        Some(line.strip_prefix("mod ")?.strip_suffix(';')?.to_owned())
    };
    read(file).lines().filter_map(name).filter(|name| name != "tests").collect()
}

/// The other modules of a folder that a module uses. Their common path, with `super`, is `path`.
fn modules_used_by(
    module: &str,
    folder: &Path,
    modules: &BTreeSet<String>,
    path: &str,
) -> BTreeSet<String> {
    let mut sources = Vec::new();
    if folder.join(module).is_dir() {
        rust_sources(&folder.join(module), &mut sources);
    }
    sources.extend(Some(folder.join(module).with_extension("rs")).filter(|file| file.exists()));
    let mut used = BTreeSet::new();
    // Tests may use any module.
    let is_test = |file: &PathBuf| file.ends_with("tests.rs") || file.ends_with("testing.rs");
    for file in sources.iter().filter(|file| !is_test(file)) {
        let text = fs::read_to_string(file).expect("it can be read");
        let code = text.split("#[cfg(test)]\nmod tests").next().expect("a part");
        let mut code: String = code
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
            .fold(String::new(), |all, line| all + line + "\n");
        if path != "crate::" {
            code = code.replace(path, "crate::").replace("super::", "crate::");
        }
        used.append(&mut modules_used(&code));
    }
    used.retain(|name| name != module && modules.contains(name));
    used
}

/// A reader of the map would believe in boundaries that the code does not have.
#[test]
fn the_map_of_modules_is_true() {
    let modules = modules_of("src/lib.rs");
    let map = read("doc/architecture.md");
    for module in &modules {
        let folder = root().join("src").join(module);
        let used = modules_used_by(module, &root().join("src"), &modules, "crate::");
        let row = |line: &&str| {
            let is_file = folder.with_extension("rs").exists();
            let name = if is_file { format!("{module}.rs") } else { format!("{module}/") };
            line.starts_with(&format!("| `{name}` |"))
        };
        let row = map.lines().find(row).unwrap_or_else(|| panic!("{module} is not in the map"));
        let calls = row.trim_end_matches('|').rsplit('|').next().expect("a column");
        let told: BTreeSet<String> = calls
            .split('`')
            .skip(1)
            .step_by(2)
            .map(|name| name.split("::").next().expect("a word").to_owned())
            .collect();
        assert_eq!(told, used, "what {module} calls, in the map and in its files");
    }
}

/// Each file of the binlog must be in its map, and only `mod.rs` may have methods of `Wal`, except
/// for checks, so that no part uses the state of all others.
#[test]
fn the_map_of_the_binlog_is_true() {
    let (map, folder) = (read("doc/architecture.md"), root().join("src/wal"));
    let mut sources = Vec::new();
    rust_sources(&folder, &mut sources);
    for path in sources {
        let name = path.strip_prefix(&folder).expect("it is in the folder").display().to_string();
        let is_test = name.contains("test") || name == "read/mod.rs";
        assert!(is_test || map.contains(&format!("`{name}`")), "{name} is not in the map");
        let text = fs::read_to_string(&path).expect("it can be read");
        assert_eq!(
            text.contains("\nimpl Wal {"),
            ["mod.rs", "testing.rs"].contains(&&*name),
            "{name}"
        );
    }
}

/// Modules that depend on each other in a cycle can be understood only together.
#[test]
fn modules_form_no_cycle() {
    for (file, path) in [
        ("src/lib.rs", "crate::"),
        ("ctl/src/main.rs", "crate::"),
        ("ctl/src/metrics/mod.rs", "crate::metrics::"),
        ("ct/src/bench/mod.rs", "crate::bench::"),
    ] {
        let (modules, folder) = (modules_of(file), root().join(file).with_file_name(""));
        let used = |name: &String| (name.clone(), modules_used_by(name, &folder, &modules, path));
        let mut left: BTreeMap<_, _> = modules.iter().map(used).collect();
        assert!(left.values().any(|used| !used.is_empty()), "{file}: nothing is used");
        let is_leaf = |left: &BTreeMap<String, BTreeSet<String>>, name: &String| {
            left[name].iter().all(|used| !left.contains_key(used))
        };
        while let Some(leaf) = left.keys().find(|name| is_leaf(&left, name)).cloned() {
            left.remove(&leaf);
        }
        assert!(left.is_empty(), "{file}: a cycle, with the modules above it: {:?}", left.keys());
    }
}

/// A module that the map lacks is found only by a search.
#[test]
fn the_map_of_ctl_is_complete() {
    let map = read("ctl/src/main.rs");
    for name in modules_of("ctl/src/main.rs") {
        assert!(map.contains(&format!("`{name}`")), "the head of main.rs lacks {name}");
    }
}

/// A file that is long without a reason is harder to read.
#[test]
fn long_files_have_their_reason() {
    const LINES_MAX: usize = 500;
    let architecture = read("doc/architecture.md");
    let reasons = architecture.split_once("## Files above 500 lines").expect("a section").1;
    let reasons = reasons.split("\n## ").next().expect("a part");
    let mut sources = Vec::new();
    rust_sources(&root().join("src"), &mut sources);
    rust_sources(&root().join("ctl"), &mut sources);
    for path in sources {
        let lines = fs::read_to_string(&path).expect("it can be read").lines().count();
        let name = path.strip_prefix(root()).expect("a path in the source tree").display();
        let has_reason = reasons.contains(&format!("`{name}`"));
        assert!(lines <= LINES_MAX || has_reason, "{name} has {lines} lines");
    }
}

/// A newcomer must find the targets to use at once, and the meaning of all others above them.
#[test]
fn targets_of_make_are_few_or_have_a_comment() {
    let makefile = read("Makefile");
    let is_listed = |line: &&str| !line.starts_with('\t') && line.contains(" ## ");
    let help = makefile.lines().filter(is_listed).count();
    assert!((1..=16).contains(&help), "make help lists {help} targets");
    for file in ["ct/rules.mk", "tests/system/rules.mk"] {
        let rules = read(file).replace("\\\n", " ");
        let phony = rules.split_once(".PHONY:").expect("a list of targets").1;
        for target in phony.lines().next().expect("a list").split_whitespace() {
            let rule = rules.find(&format!("\n{target}:")).expect("a rule for each target");
            let above = rules[..rule].lines().next_back().expect("a line");
            assert!(above.starts_with('#'), "{file}: {target} has no comment");
        }
    }
}

/// A test that is not documented is not run.
#[test]
fn every_test_is_in_the_guide() {
    let guide = read("doc/hacking.md");
    let mut sources = Vec::new();
    rust_sources(&root().join("tests"), &mut sources);
    rust_sources(&root().join("ctl/tests"), &mut sources);
    // These only list the modules beside them.
    sources.retain(|path| !path.ends_with("main.rs") && !path.ends_with("mod.rs"));
    for path in sources {
        let path = path.strip_prefix(root()).expect("a path in the source tree").display();
        assert!(guide.contains(&format!("`{path}`")), "doc/hacking.md: {path}");
    }
}
