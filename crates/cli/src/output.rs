//! Everything that leaves the process: standard output, standard error, and files, which are
//! written whole or not at all.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use anyhow::{Context, anyhow};

/// Writes to standard output. A reader that stops reading is no error.
pub(crate) fn print(bytes: &[u8]) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// Writes a line to standard error.
pub(crate) fn note(line: &str) {
    // With standard error gone there is nobody left to tell.
    let _ = writeln!(io::stderr(), "{line}");
}

/// Writes an error as one line to standard error.
pub(crate) fn report_error(error: &anyhow::Error) {
    note(&format!("error: {}", one_line(&format!("{error:#}"))));
}

/// The text with its lines joined.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Writes a file whole, or leaves it as it was; `-` is standard output.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    if path.as_os_str() == "-" {
        return print(bytes);
    }
    let done = match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(anyhow!("is a directory")),
        // A device or a pipe must not be replaced by a file.
        Ok(found) if !found.is_file() => fs::write(path, bytes).map_err(Into::into),
        _ => replace(path, bytes).map_err(Into::into),
    };
    done.with_context(|| format!("cannot write {}", path.display()))
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // Through a symbolic link, the file it leads to is replaced.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let folder = match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = builder
        .prefix(".clif-memopt-")
        .tempfile_in(folder)
        .map_err(plain)?;
    file.write_all(bytes)?;
    file.persist(&target).map_err(|error| error.error)?;
    Ok(())
}

/// The error without the name of the temporary file, which says nothing to a reader.
fn plain(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::from(error.kind()),
    }
}
