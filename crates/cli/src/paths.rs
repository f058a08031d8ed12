//! The CLIF files that a command line names: files, and all below folders.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// The files that `paths` name, those of a folder in order of their names.
pub(crate) fn clif_files(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            if path.as_os_str() != "-" {
                fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
            }
            files.push(path.clone());
            continue;
        }
        let found = below(path)?;
        if found.is_empty() {
            bail!("no .clif files in {}", path.display());
        }
        files.extend(found);
    }
    Ok(files)
}

fn below(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let context = || format!("cannot read {}", folder.display());
        for entry in fs::read_dir(&folder).with_context(context)? {
            let entry = entry.with_context(context)?;
            let path = entry.path();
            // A link to a folder is not followed: it may lead back here.
            if entry.file_type().with_context(context)?.is_dir() {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|extension| extension == "clif")
            {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}
