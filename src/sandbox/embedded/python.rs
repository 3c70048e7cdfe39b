//! Finds the host's Python that runs inside sandboxes: the base interpreter, never a virtual environment's copy.
//! Never trusts the surroundings: every call is `-I`, which ignores PYTHON variables and user packages, and has a time-out.
//! Invariant: a `Python` was run once and is 3.9 or newer.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;

const QUESTION: &str = "import importlib.util, json, os, sys; \
print(json.dumps({'executable': os.path.realpath(getattr(sys, '_base_executable', None) or sys.executable), \
'prefix': os.path.realpath(sys.base_prefix), 'version': list(sys.version_info[:3]), \
'has_pip': importlib.util.find_spec('pip') is not None}))";
/// What the distribution built.
const SYSTEM: &str = "/usr/bin/python3";
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
const OLDEST: (u32, u32) = (3, 9);

/// An interpreter of the host.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Python {
    pub executable: PathBuf,
    /// The folder its standard library lives under.
    pub prefix: PathBuf,
    pub version: (u32, u32, u32),
    pub has_pip: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum PythonError {
    #[error(
        "no Python 3.9 or newer was found on PATH or at /usr/bin/python3; install python3 ({0})"
    )]
    NotFound(String),
}

impl Python {
    /// `python3` on PATH, or `/usr/bin/python3` if there is none or it can take that one's place.
    pub fn find() -> Result<Self, PythonError> {
        let system = || Self::ask(Path::new(SYSTEM));
        match Self::ask(Path::new("python3")) {
            Ok(python) if python.prefix == Path::new("/usr") => Ok(python),
            Ok(python) => Ok(python.or_faster(system().ok())),
            Err(reason) => system().map_err(|other| {
                PythonError::NotFound(format!("python3: {reason}; {SYSTEM}: {other}"))
            }),
        }
    }

    /// The system's one, if it is of the same version and can install packages too: distributions build theirs with profiles
    /// and link-time optimisation, while one that was compiled on the machine, as pyenv does, takes twice as long for the same code.
    fn or_faster(self, system: Option<Self>) -> Self {
        let same = |system: &Self| {
            let ((major, minor, _), (its_major, its_minor, _)) = (self.version, system.version);
            (major, minor) == (its_major, its_minor) && (system.has_pip || !self.has_pip)
        };
        system.filter(same).unwrap_or(self)
    }

    /// Runs one interpreter and takes its word for where it lives.
    pub fn ask(program: &Path) -> Result<Self, String> {
        let mut child = Command::new(program)
            .args(["-I", "-c", QUESTION])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| error.to_string())?;
        let deadline = Instant::now() + ANSWER_LIMIT;
        while child
            .try_wait()
            .map_err(|error| error.to_string())?
            .is_none()
        {
            if Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                return Err("gave no answer in time".to_owned());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let output = child
            .wait_with_output()
            .map_err(|error| error.to_string())?;
        let python: Self = serde_json::from_slice(&output.stdout)
            .map_err(|_| "is not a working Python".to_owned())?;
        python.checked()
    }

    fn checked(self) -> Result<Self, String> {
        let (major, minor, _) = self.version;
        if (major, minor) < OLDEST {
            return Err(format!("is {}, too old", self.version_text()));
        }
        if !self.executable.is_absolute() || !self.prefix.is_absolute() {
            return Err("did not say where it lives".to_owned());
        }
        Ok(self)
    }

    pub fn version_text(&self) -> String {
        let (major, minor, patch) = self.version;
        format!("{major}.{minor}.{patch}")
    }

    /// The folders that must appear in a sandbox for this interpreter to run, besides `/usr`.
    pub fn folders_outside_usr(&self) -> Vec<PathBuf> {
        let mut folders = Vec::new();
        if !self.prefix.starts_with("/usr") && self.prefix != Path::new("/") {
            folders.push(self.prefix.clone());
        }
        let program_dir = self.executable.parent().unwrap_or(Path::new("/usr"));
        if !program_dir.starts_with("/usr") && !program_dir.starts_with(&self.prefix) {
            folders.push(program_dir.to_owned());
        }
        folders
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn python(executable: &str, prefix: &str, version: (u32, u32, u32)) -> Python {
        Python {
            executable: executable.into(),
            prefix: prefix.into(),
            version,
            has_pip: true,
        }
    }

    #[test]
    fn the_systems_interpreter_stands_in_for_one_of_the_same_version_that_can_do_no_more() {
        let own = python("/home/ada/bin/python3.11", "/home/ada", (3, 11, 7));
        let system = python("/usr/bin/python3.11", "/usr", (3, 11, 2));
        let newer = python("/usr/bin/python3.12", "/usr", (3, 12, 1));
        let bare = Python {
            has_pip: false,
            ..system.clone()
        };
        let chosen = |system: &Python| own.clone().or_faster(Some(system.clone()));
        assert_eq!(chosen(&system), system);
        assert_eq!(chosen(&newer), own);
        assert_eq!(chosen(&bare), own);
        assert_eq!(own.clone().or_faster(None), own);
    }

    #[test]
    fn the_interpreter_on_path_is_found() {
        let found = Python::find().unwrap();
        assert!(found.executable.is_absolute() && found.version >= (3, 9, 0));
    }

    #[test]
    fn old_and_fake_interpreters_are_refused() {
        let old = python("/usr/bin/python3.8", "/usr", (3, 8, 18));
        assert_eq!(old.checked().unwrap_err(), "is 3.8.18, too old");
        assert_eq!(
            Python::ask(Path::new("/bin/true")).unwrap_err(),
            "is not a working Python"
        );
    }

    #[test]
    fn only_a_prefix_outside_usr_needs_a_mount() {
        assert!(
            python("/usr/bin/python3", "/usr", (3, 11, 2))
                .folders_outside_usr()
                .is_empty()
        );
        let pyenv = python(
            "/home/ada/.pyenv/versions/3.11.7/bin/python3.11",
            "/home/ada/.pyenv/versions/3.11.7",
            (3, 11, 7),
        );
        assert_eq!(
            pyenv.folders_outside_usr(),
            [PathBuf::from("/home/ada/.pyenv/versions/3.11.7")]
        );
        let split = python("/opt/bin/python3", "/opt/lib/python", (3, 12, 0));
        assert_eq!(
            split.folders_outside_usr(),
            [PathBuf::from("/opt/lib/python"), PathBuf::from("/opt/bin")]
        );
    }
}
