//! The Python packages of sandboxes: installed once by pip into a folder of their own, mounted read-only into each one.
//! Never touches the host's site-packages, never builds from source: wheels only.
//! Invariant: a folder under its final name is complete; it is named by requirements, interpreter and platform.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};

use super::kernel_files::make_readable;
use super::python::Python;

const COMPLETE: &str = ".complete";
const STANDARD_LIBRARY_ONLY: &str = "until then sandboxes have the standard library only";

#[derive(Debug, thiserror::Error)]
pub enum PackagesError {
    #[error("there is no cache folder: set HOME or XDG_CACHE_HOME; {STANDARD_LIBRARY_ONLY}")]
    NoCache,
    #[error("{python} has no pip: install python3-pip and try again; {STANDARD_LIBRARY_ONLY}")]
    NoPip { python: PathBuf },
    #[error(
        "pip could not install the packages ({last_line}); check the network and try again; {STANDARD_LIBRARY_ONLY}"
    )]
    PipFailed { last_line: String },
    #[error("packages folder {path}: {source}; {STANDARD_LIBRARY_ONLY}")]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
}

/// The prepared folder for these requirements and this interpreter, if there is one.
pub fn locate(requirements: &str, python: &Python) -> Option<PathBuf> {
    locate_in(&cache_dir()?, requirements, python)
}

/// Installs the packages unless they are there; `progress` gets pip's lines. Two at once wait for each other.
pub fn prepare(
    requirements: &str,
    python: &Python,
    progress: impl FnMut(&str),
) -> Result<PathBuf, PackagesError> {
    let cache = cache_dir().ok_or(PackagesError::NoCache)?;
    prepare_in(&cache, requirements, python, progress)
}

fn cache_dir() -> Option<PathBuf> {
    let absolute = |name: &str| {
        let path = PathBuf::from(std::env::var_os(name)?);
        path.is_absolute().then_some(path)
    };
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(base.join("cellblock/packages"))
}

fn locate_in(cache: &Path, requirements: &str, python: &Python) -> Option<PathBuf> {
    let folder = cache.join(key(requirements, python));
    folder.join(COMPLETE).exists().then_some(folder)
}

fn prepare_in(
    cache: &Path,
    requirements: &str,
    python: &Python,
    mut progress: impl FnMut(&str),
) -> Result<PathBuf, PackagesError> {
    let io = |source| PackagesError::Io {
        path: cache.to_owned(),
        source,
    };
    fs::create_dir_all(cache).map_err(io)?;
    let lock = File::create(cache.join(".lock")).map_err(io)?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|errno| io(errno.into()))?;
    if let Some(folder) = locate_in(cache, requirements, python) {
        return Ok(folder);
    }
    if !python.has_pip {
        return Err(PackagesError::NoPip {
            python: python.executable.clone(),
        });
    }
    let folder = cache.join(key(requirements, python));
    let staged = cache.join(format!(".{}", key(requirements, python)));
    // The lock is ours, so whatever is there was cut short.
    remove_tree(&staged).map_err(io)?;
    remove_tree(&folder).map_err(io)?;
    let installed = install(&staged, requirements, python, &mut progress, io);
    if let Err(error) = installed {
        // The reason for the failure matters more than a left-over, which the next attempt removes.
        let _ = remove_tree(&staged);
        return Err(error);
    }
    fs::rename(&staged, &folder).map_err(io)?;
    Ok(folder)
}

fn install(
    staged: &Path,
    requirements: &str,
    python: &Python,
    progress: &mut impl FnMut(&str),
    io: impl Fn(std::io::Error) -> PackagesError,
) -> Result<(), PackagesError> {
    fs::create_dir(staged).map_err(&io)?;
    let list = staged.join(".requirements.txt");
    fs::write(&list, requirements).map_err(&io)?;
    let options = [
        "-I",
        "-m",
        "pip",
        "install",
        "--only-binary=:all:",
        "--no-input",
    ];
    let mut pip = Command::new(&python.executable);
    pip.args(options)
        .args([
            "--disable-pip-version-check",
            "--progress-bar=off",
            "--root-user-action=ignore",
        ])
        .args([OsStr::new("--target"), staged.as_os_str()])
        .args([OsStr::new("-r"), list.as_os_str()]);
    let (succeeded, last_line) = run(&mut pip, progress).map_err(&io)?;
    if !succeeded {
        return Err(PackagesError::PipFailed { last_line });
    }
    build_font_cache(staged, python, progress);
    make_readable(staged).map_err(&io)?;
    fs::write(staged.join(COMPLETE), "").map_err(&io)
}

/// A first plot would spend seconds looking for fonts; the sandbox copies or reads this instead. A matter of speed only.
fn build_font_cache(staged: &Path, python: &Python, progress: &mut impl FnMut(&str)) {
    if !staged.join("matplotlib").is_dir() {
        return;
    }
    progress("building the matplotlib font cache");
    let mut build = Command::new(&python.executable);
    build
        .args(["-c", "import matplotlib.font_manager"])
        .env("PYTHONPATH", staged)
        .env("MPLCONFIGDIR", staged.join(".matplotlib"));
    if !matches!(run(&mut build, progress), Ok((true, _))) {
        tracing::warn!("the matplotlib font cache could not be built; first plots are slower");
    }
}

/// Runs to the end, passing on both streams line by line. Whether it succeeded, and its last line.
fn run(command: &mut Command, progress: &mut impl FnMut(&str)) -> std::io::Result<(bool, String)> {
    let (reader, writer) = std::io::pipe()?;
    command
        .stdin(Stdio::null())
        .stderr(writer.try_clone()?)
        .stdout(writer);
    let mut child = command.spawn()?;
    // The command holds our copies of the writing end; the stream ends only when they are gone.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut last_line = String::new();
    for line in BufReader::new(reader).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).trim_end().to_owned();
        if !line.trim().is_empty() {
            progress(&line);
            last_line = line;
        }
    }
    Ok((child.wait()?.success(), last_line))
}

fn remove_tree(path: &Path) -> std::io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn key(requirements: &str, python: &Python) -> String {
    let mut hash = Sha256::new();
    let prefix = python.prefix.to_string_lossy();
    let platform = [std::env::consts::OS, std::env::consts::ARCH];
    let version = python.version_text();
    for part in [requirements, &version, &prefix, platform[0], platform[1]] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hex::encode(hash.finalize())[..24].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_located_before_it_is_complete() {
        let cache = tempfile::tempdir().unwrap();
        let python = Python::find().unwrap();
        assert_eq!(locate_in(cache.path(), "numpy", &python), None);
        let folder = cache.path().join(key("numpy", &python));
        fs::create_dir(&folder).unwrap();
        assert_eq!(locate_in(cache.path(), "numpy", &python), None);
        fs::write(folder.join(COMPLETE), "").unwrap();
        assert_eq!(locate_in(cache.path(), "numpy", &python), Some(folder));
    }

    #[test]
    fn the_key_depends_on_requirements_and_interpreter() {
        let python = Python::find().unwrap();
        let mut other = python.clone();
        other.version.2 += 1;
        assert_ne!(key("a", &python), key("b", &python));
        assert_ne!(key("a", &python), key("a", &other));
    }

    #[test]
    fn an_empty_list_is_prepared_without_network_and_only_once() {
        let cache = tempfile::tempdir().unwrap();
        let python = Python::find().unwrap();
        let first = prepare_in(cache.path(), "# nothing\n", &python, |_| {}).unwrap();
        let mut lines = 0;
        let second = prepare_in(cache.path(), "# nothing\n", &python, |_| lines += 1).unwrap();
        assert_eq!((first, lines), (second, 0));
    }

    #[test]
    fn a_failure_says_what_remains_and_leaves_nothing() {
        let cache = tempfile::tempdir().unwrap();
        let python = Python::find().unwrap();
        let impossible = "/nonexistent/x-1-py3-none-any.whl\n";
        let error = prepare_in(cache.path(), impossible, &python, |_| {}).unwrap_err();
        assert!(matches!(error, PackagesError::PipFailed { .. }));
        assert!(
            error.to_string().contains("standard library only"),
            "{error}"
        );
        let left: Vec<_> = fs::read_dir(cache.path())
            .unwrap()
            .flatten()
            .map(|entry| entry.file_name())
            .collect();
        assert_eq!(left, [".lock"]);
    }
}
