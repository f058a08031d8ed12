//! The lines of a filetest before its first function: for which target, under which settings.

/// The `set` and `target` lines of a file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Header {
    /// The settings of all `set` lines, each with its line.
    pub(crate) settings: Vec<(usize, String)>,
    /// The `target` lines.
    pub(crate) targets: Vec<TargetLine>,
}

/// A `target` line.
#[derive(Clone, Debug)]
pub(crate) struct TargetLine {
    pub(crate) line: usize,
    pub(crate) triple: String,
    pub(crate) settings: Vec<String>,
}

impl Header {
    /// Reads the header, and gives the text with its `set` and `target` lines blank: these are
    /// ours to interpret, as the reader refuses a file for a target that is not built in.
    pub(crate) fn split(text: &str) -> (Header, String) {
        let mut header = Header::default();
        let mut rest = String::with_capacity(text.len());
        let mut inside = true;
        for (index, line) in text.split_inclusive('\n').enumerate() {
            inside = inside && is_header(line);
            if inside && header.take(index + 1, line) {
                rest.push('\n');
            } else {
                rest.push_str(line);
            }
        }
        (header, rest)
    }

    fn take(&mut self, line: usize, text: &str) -> bool {
        let mut words = words(text);
        match words.next() {
            Some("set") => self
                .settings
                .extend(words.map(|word| (line, word.to_string()))),
            Some("target") => self.targets.push(TargetLine {
                line,
                triple: words.next().unwrap_or_default().to_string(),
                settings: words.map(str::to_string).collect(),
            }),
            _ => return false,
        }
        true
    }
}

fn is_header(line: &str) -> bool {
    matches!(
        words(line).next(),
        None | Some("test" | "set" | "target" | "feature")
    )
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(';')
        .next()
        .unwrap_or_default()
        .split_whitespace()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_settings_and_targets_and_keeps_lines() {
        let text = "test optimize\nset opt_level=none\n; set no\n\ntarget x86_64 has_avx ; new\n\
                    function %f() {\nset x\n";
        let (header, rest) = Header::split(text);
        assert_eq!(header.settings, [(2, "opt_level=none".to_string())]);
        assert_eq!(header.targets[0].line, 5);
        assert_eq!(header.targets[0].triple, "x86_64");
        assert_eq!(header.targets[0].settings, ["has_avx"]);
        assert_eq!(rest.lines().count(), text.lines().count());
        assert!(rest.contains("function %f() {\nset x\n") && !rest.contains("opt_level"));
    }
}
