//! What a file expects of the text that a subtest prints: precise text, `check:` lines, counters and
//! remarks.

use std::ops::Range;

use anyhow::{Context as _, Result, anyhow};
use cranelift_memopt::Report;
use filecheck::{CheckerBuilder, NO_VARIABLES};
use similar::TextDiff;

use crate::source::{CommentKind, DirectiveKind, TestFunction, TestSource};

/// The precise text that follows `function`: the expected lines of its trailer, without `; `.
pub(crate) fn precise_text(source: &TestSource, function: &TestFunction) -> String {
    lines_in(source, &function.trailer)
        .filter_map(expected_line)
        .map(|line| format!("{line}\n"))
        .collect()
}

/// The expected text of a line, if it is a line of expected text.
fn expected_line(line: &str) -> Option<&str> {
    if !line.starts_with(';') {
        return None;
    }
    match CommentKind::of(line.trim_end()) {
        CommentKind::Expected(text) => Some(text),
        CommentKind::Prose | CommentKind::Directive(..) => None,
    }
}

fn lines_in<'a>(source: &'a TestSource, range: &Range<usize>) -> impl Iterator<Item = &'a str> {
    source.text.lines().skip(range.start - 1).take(range.len())
}

/// Printed text in the form in which it is compared: no space at line ends, none at the end.
pub(crate) fn normalized(text: &str) -> String {
    let text = text.trim_end();
    text.lines()
        .map(|line| format!("{}\n", line.trim_end()))
        .collect()
}

/// A unified diff between the expected and the actual text, or `None` if they are equal.
pub(crate) fn precise_difference(expected: &str, actual: &str) -> Option<String> {
    (expected != actual).then(|| {
        TextDiff::from_lines(expected, actual)
            .unified_diff()
            .header("expected", "actual")
            .to_string()
    })
}

/// The file's text with `texts` as the precise text of its functions. Only lines of expected text
/// change.
pub(crate) fn blessed(source: &TestSource, texts: &[Option<String>]) -> String {
    let lines: Vec<&str> = source.text.lines().collect();
    let mut result = String::new();
    let mut next = 1;
    for (function, text) in source.functions.iter().zip(texts) {
        let Some(text) = text else { continue };
        push_lines(&mut result, &lines, next..function.trailer.start);
        push_trailer(&mut result, &lines[trailer_indices(function, &lines)], text);
        next = function.trailer.end;
    }
    push_lines(&mut result, &lines, next..lines.len() + 1);
    result
}

fn trailer_indices(function: &TestFunction, lines: &[&str]) -> Range<usize> {
    let end = (function.trailer.end - 1).min(lines.len());
    (function.trailer.start - 1).min(end)..end
}

fn push_lines(result: &mut String, lines: &[&str], range: Range<usize>) {
    for line in &lines[range.start - 1..range.end - 1] {
        result.push_str(line);
        result.push('\n');
    }
}

/// Writes a trailer with its expected lines replaced: where the first one was, or at the top.
fn push_trailer(result: &mut String, trailer: &[&str], text: &str) {
    let is_expected = |line: &&str| expected_line(line).is_some();
    let place = trailer.iter().position(is_expected).unwrap_or(0);
    for line in &trailer[..place] {
        result.push_str(line);
        result.push('\n');
    }
    for line in text.lines() {
        result.push_str(if line.is_empty() { ";" } else { "; " });
        result.push_str(line);
        result.push('\n');
    }
    for line in trailer[place..].iter().filter(|line| !is_expected(line)) {
        result.push_str(line);
        result.push('\n');
    }
}

/// Whether the file has any `check:` line.
pub(crate) fn has_checks(source: &TestSource) -> bool {
    let in_functions = |f: &TestFunction| f.directives(DirectiveKind::Check).next().is_some();
    source
        .preamble_directives(DirectiveKind::Check)
        .next()
        .is_some()
        || source.functions.iter().any(in_functions)
}

/// Applies the `check:` lines of the file and of `function` to `text`.
pub(crate) fn check_lines(source: &TestSource, function: &TestFunction, text: &str) -> Result<()> {
    let mut builder = CheckerBuilder::new();
    let comments = source.preamble.iter().chain(&function.comments);
    for comment in comments {
        if let CommentKind::Directive(DirectiveKind::Check, _) = CommentKind::of(&comment.text) {
            builder
                .directive(&comment.text)
                .map_err(|error| source.error_at(comment.line, format!("{error}")))?;
        }
    }
    let checker = builder.finish();
    let matches = checker
        .check(text, NO_VARIABLES)
        .map_err(|error| source.error_at(function.line, format!("filecheck: {error}")))?;
    if matches {
        return Ok(());
    }
    let explanation = match checker.explain(text, NO_VARIABLES) {
        Ok((_, explanation)) => explanation,
        Err(error) => error.to_string(),
    };
    let message = format!(
        "{}: check lines do not match\n{text}\n{checker}\n{explanation}",
        function.function.name
    );
    Err(source.error_at(function.line, message))
}

/// Checks the `; stats:` and `; remark:` lines of `function`.
pub(crate) fn check_report(
    source: &TestSource,
    function: &TestFunction,
    report: &Report,
) -> Result<()> {
    for (line, text) in function.directives(DirectiveKind::Stats) {
        check_counter(report, text).map_err(|error| source.error_at(line, error))?;
    }
    for (line, text) in function.directives(DirectiveKind::Remark) {
        check_remark(report, text).map_err(|error| source.error_at(line, error))?;
    }
    Ok(())
}

fn check_counter(report: &Report, text: &str) -> Result<()> {
    let form = || format!("stats line '{text}': expected 'pass.counter = number'");
    let (name, number) = text.split_once('=').with_context(form)?;
    let (name, number) = (name.trim(), number.trim());
    let expected: u64 = number.parse().ok().with_context(form)?;
    let counters: Vec<(&str, u64)> = report.stats.iter().collect();
    let Some((_, actual)) = counters.iter().find(|(known, _)| *known == name) else {
        let known: Vec<&str> = counters.iter().map(|(known, _)| *known).collect();
        return Err(anyhow!(
            "unknown counter '{name}' (known: {})",
            known.join(", ")
        ));
    };
    if *actual != expected {
        return Err(anyhow!("{name} is {actual}, expected {expected}"));
    }
    Ok(())
}

fn check_remark(report: &Report, text: &str) -> Result<()> {
    let remarks: Vec<String> = report.remarks.iter().map(ToString::to_string).collect();
    if remarks.iter().any(|remark| remark.contains(text)) {
        return Ok(());
    }
    let list: String = remarks
        .iter()
        .map(|remark| format!("\n  {remark}"))
        .collect();
    Err(anyhow!("no remark contains '{text}'; there are:{list}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = ";; why
test optimize precise-output

function %f() {
block0:
    return
}

; stale
; stale too
; run: %f()
; stats: dse.removed = 0
;; about %g
function %g() {
block0:
    return
}";

    fn bless(text: &str, printed: [&str; 2]) -> String {
        let source = TestSource::parse("t.clif", text).unwrap();
        let texts = printed.map(|text| Some(normalized(text)));
        blessed(&source, &texts)
    }

    #[test]
    fn bless_replaces_only_expected_text() {
        let once = bless(TEXT, ["a\n\n  ; b", "c"]);
        let expected = TEXT.replace("; stale\n; stale too\n", "; a\n;\n;   ; b\n") + "\n; c\n";
        assert_eq!(once, expected);
        assert_eq!(bless(&once, ["a\n\n  ; b", "c"]), once);
    }

    #[test]
    fn blessed_text_is_what_is_expected() {
        let text = bless(TEXT, ["a\n\n  ; b", "c"]);
        let source = TestSource::parse("t.clif", &text).unwrap();
        let first = precise_text(&source, &source.functions[0]);
        assert_eq!(first, "a\n\n  ; b\n");
        assert!(precise_difference(&first, &normalized("a\n\n  ; b")).is_none());
        let diff = precise_difference(&first, "a\n").unwrap();
        assert!(diff.contains("-  ; b"), "{diff}");
    }

    #[test]
    fn counters_and_remarks_are_checked() {
        let report = Report::default();
        let error = check_counter(&report, "no.such = 1")
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("unknown counter 'no.such' (known: "));
        let error = check_counter(&report, "no.such").unwrap_err().to_string();
        assert!(error.contains("expected 'pass.counter = number'"));
        assert!(check_remark(&report, "anything").is_err());
    }
}
