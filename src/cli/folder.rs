//! The folder of a run: files are written into a hidden staging folder inside it and moved to their
//! names together at the end, all or none. A run that fails or is interrupted changes nothing.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::cli::interrupt::litter;

/// Every name that a run may write. One run owns them all: those that it does not write go.
pub const NAMES: [&str; 5] =
    ["summary.json", "resolved.toml", "requests.csv", "requests.csv.zst", "timeseries.csv"];

/// The one of them that tells a run folder.
const SUMMARY: &str = "summary.json";
/// As much of it as it takes to tell.
const HEAD_BYTES: u64 = 256;
/// Prefix of the hidden staging folder.
const STAGING_PREFIX: &str = ".fleetcast-";

/// A run folder being filled.
#[derive(Debug)]
pub struct RunFolder {
    dir: PathBuf,
    staging: PathBuf,
    /// Folders that did not exist before, innermost first.
    created: Vec<PathBuf>,
}

impl RunFolder {
    /// Opens `dir` for a run, creating it where needed.
    ///
    /// # Errors
    /// When `dir` is no folder, holds files of other origin under [`NAMES`], or cannot be written
    /// to.
    pub fn open(dir: &Path) -> Result<Self> {
        if dir.exists() && !dir.is_dir() {
            bail!(
                "--out {}: this is a file; expected a folder, or a name that is free",
                dir.display()
            );
        }
        refuse_strangers(dir)?;
        // Registered before they exist, so that an interruption in between finds them.
        let mut litter = litter();
        let created = missing_ancestors(dir);
        litter.created.extend(created.iter().cloned());
        let staging = fs::create_dir_all(dir)
            .and_then(|()| tempfile::Builder::new().prefix(STAGING_PREFIX).tempdir_in(dir));
        let staging = match staging {
            Ok(staging) => staging.keep(),
            Err(error) => {
                litter.remove();
                return Err(error).with_context(|| format!("--out {}", dir.display()));
            }
        };
        litter.staging.push(staging.clone());
        Ok(Self { dir: dir.to_owned(), staging, created })
    }

    /// A new file that [`RunFolder::commit`] will move to `name`, or a part that it will drop.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn create(&self, name: &str) -> io::Result<File> {
        File::options().read(true).write(true).create_new(true).open(self.staging.join(name))
    }

    /// Opens a part made by [`RunFolder::create`] for reading.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn reopen(&self, name: &str) -> io::Result<File> {
        File::open(self.staging.join(name))
    }

    /// Drops a part made by [`RunFolder::create`].
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.staging.join(name))
    }

    /// Moves the files with [`NAMES`] into place, and those of an earlier run away.
    ///
    /// # Errors
    /// When the file system refuses a move; everything is moved back first.
    pub fn commit(self) -> Result<()> {
        let mut litter = litter();
        let earlier = self.staging.join("earlier");
        let mut moved: Vec<(PathBuf, PathBuf)> = Vec::new();
        let mut step = |from: PathBuf, to: PathBuf| -> io::Result<()> {
            fs::rename(&from, &to)?;
            moved.push((from, to));
            Ok(())
        };
        let mut all = || -> io::Result<()> {
            fs::create_dir(&earlier)?;
            for name in NAMES.iter().filter(|name| self.dir.join(name).exists()) {
                step(self.dir.join(name), earlier.join(name))?;
            }
            for name in NAMES.iter().filter(|name| self.staging.join(name).exists()) {
                step(self.staging.join(name), self.dir.join(name))?;
            }
            Ok(())
        };
        let result = all();
        if result.is_err() {
            for (from, to) in moved.into_iter().rev() {
                // Best effort: the file system has just refused once.
                _ = fs::rename(to, from);
            }
        } else {
            litter.created.retain(|dir| !self.created.contains(dir));
        }
        drop(litter);
        result.with_context(|| format!("moving files into {}", self.dir.display()))
    }
}

impl Drop for RunFolder {
    /// Takes away what was staged and, when nothing was committed, the folders made for it.
    fn drop(&mut self) {
        let mut litter = litter();
        _ = fs::remove_dir_all(&self.staging);
        litter.staging.retain(|dir| *dir != self.staging);
        for dir in &self.created {
            // Those that were committed into are not listed any more, nor empty.
            if litter.created.contains(dir) {
                _ = fs::remove_dir(dir);
            }
        }
        litter.created.retain(|dir| !self.created.contains(dir));
    }
}

/// A later run replaces an earlier one, and nothing else: a trace called `requests.csv` stays.
fn refuse_strangers(dir: &Path) -> Result<()> {
    let there = |name: &&&str| dir.join(name).symlink_metadata().is_ok();
    let Some(name) = NAMES.iter().find(there) else { return Ok(()) };
    let is_folder = NAMES.iter().find(|name| dir.join(name).is_dir());
    if let Some(folder) = is_folder {
        bail!(
            "--out {}: a run would replace the folder `{folder}` in it; give another",
            dir.display()
        )
    }
    if !is_summary(&dir.join(SUMMARY)) {
        bail!(
            "--out {}: `{name}` in it is of no earlier run and would be replaced\nhelp: give \
             another folder, as in `--out {}`",
            dir.display(),
            dir.join("run").display()
        );
    }
    Ok(())
}

/// True for a `summary.json` of ours, by its first key.
fn is_summary(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(HEAD_BYTES).read_to_end(&mut head));
    let text = String::from_utf8_lossy(&head);
    read.is_ok() && text.trim_start_matches('{').trim_start().starts_with("\"fleetcast\"")
}

/// `dir` and those above it that do not exist, innermost first.
fn missing_ancestors(dir: &Path) -> Vec<PathBuf> {
    dir.ancestors()
        .take_while(|path| path.as_os_str() != OsStr::new("") && !path.exists())
        .map(Path::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Begins as a summary does.
    const OLD: &str = "{\n  \"fleetcast\": { \"version\": \"old\" }\n}";

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn write(folder: &RunFolder, name: &str, text: &str) {
        folder.create(name).unwrap().write_all(text.as_bytes()).unwrap();
    }

    #[test]
    fn nothing_shows_before_the_commit_and_everything_after() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a/b");
        let folder = RunFolder::open(&dir).unwrap();
        write(&folder, "summary.json", "new");
        write(&folder, "requests.1.part", "part");
        assert!(!dir.join("summary.json").exists());
        folder.commit().unwrap();
        assert_eq!(names(&dir), ["summary.json"]);
    }

    #[test]
    fn a_run_that_fails_leaves_the_earlier_files_and_no_folder_of_its_own() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("fresh/deep");
        let folder = RunFolder::open(&dir).unwrap();
        write(&folder, "summary.json", "half");
        drop(folder);
        assert!(!root.path().join("fresh").exists());

        fs::write(root.path().join("summary.json"), OLD).unwrap();
        let folder = RunFolder::open(root.path()).unwrap();
        write(&folder, "summary.json", "half");
        drop(folder);
        assert_eq!(names(root.path()), ["summary.json"]);
        assert_eq!(fs::read_to_string(root.path().join("summary.json")).unwrap(), OLD);
    }

    #[test]
    fn files_of_an_earlier_run_that_this_one_does_not_write_go() {
        let root = tempfile::tempdir().unwrap();
        for name in ["requests.csv", "summary.json", "notes.txt"] {
            fs::write(root.path().join(name), OLD).unwrap();
        }
        let folder = RunFolder::open(root.path()).unwrap();
        write(&folder, "summary.json", "new");
        folder.commit().unwrap();
        assert_eq!(names(root.path()), ["notes.txt", "summary.json"]);
        assert_eq!(fs::read_to_string(root.path().join("summary.json")).unwrap(), "new");
    }

    #[test]
    fn a_commit_that_cannot_finish_moves_everything_back() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("summary.json"), OLD).unwrap();
        let folder = RunFolder::open(root.path()).unwrap();
        write(&folder, "summary.json", "new");
        // The place for earlier files is taken by a file.
        write(&folder, "earlier", "in the way");
        assert!(folder.commit().is_err());
        assert_eq!(names(root.path()), ["summary.json"]);
        assert_eq!(fs::read_to_string(root.path().join("summary.json")).unwrap(), OLD);
    }

    #[test]
    fn files_and_folders_of_other_origin_are_not_replaced() {
        let root = tempfile::tempdir().unwrap();
        let refusal = || format!("{:#}", RunFolder::open(root.path()).unwrap_err());
        fs::write(root.path().join("requests.csv"), "my trace").unwrap();
        assert!(refusal().contains("`requests.csv` in it is of no earlier run"), "{}", refusal());
        fs::write(root.path().join("summary.json"), "{}").unwrap();
        assert!(refusal().contains("of no earlier run"), "{}", refusal());
        fs::write(root.path().join("summary.json"), OLD).unwrap();
        fs::create_dir(root.path().join("resolved.toml")).unwrap();
        assert!(refusal().contains("the folder `resolved.toml`"), "{}", refusal());
        assert_eq!(fs::read_to_string(root.path().join("requests.csv")).unwrap(), "my trace");
    }

    #[test]
    fn a_file_is_no_run_folder() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("x");
        fs::write(&file, "").unwrap();
        let message = format!("{:#}", RunFolder::open(&file).unwrap_err());
        assert!(message.contains("expected a folder"), "{message}");
    }
}
