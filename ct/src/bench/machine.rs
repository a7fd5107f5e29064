//! Describes the machine for the report.

use std::fs;

use super::measure::Cores;

/// Returns processor, cores, memory and kernel in one line.
pub fn describe(cores: &Cores) -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let processor = field(&read("/proc/cpuinfo"), "model name");
    let memory = field(&read("/proc/meminfo"), "MemTotal");
    let kernel = read("/proc/sys/kernel/osrelease");
    let split = if cores.are_split() { "daemon and load on a core each" } else { "one core" };
    let count = cores.count();
    format!("{processor}, {count} cores, {memory}, Linux {}, {split}", kernel.trim())
}

fn field(text: &str, name: &str) -> String {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let value = line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim());
    value.unwrap_or("unknown").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_or_unknown() {
        let text = "model name\t: Some CPU @ 2.10GHz\nflags : a b\n";
        assert_eq!(field(text, "model name"), "Some CPU @ 2.10GHz");
        assert_eq!(field(text, "MemTotal"), "unknown");
    }
}
