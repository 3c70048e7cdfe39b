//! Puts the kernel's Python files on disk for the read-only mount, compiled, so that a sandbox starts fast.
//! Never changes files in place: a new content is a new folder.
//! Invariant: a folder that has its final name is complete.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

use sha2::{Digest, Sha256};

use super::python::Python;

#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("kernel file name {0} leads out of its folder")]
    BadName(String),
    #[error("kernel files could not be written to {path}: {source}")]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
}

/// Writes `files` (relative path, text) to `runtime_root/kernel-<hash>` and gives that path; done once per content.
pub fn install_kernel(
    runtime_root: &Path,
    files: &[(&str, &str)],
    python: &Python,
) -> Result<PathBuf, InstallError> {
    for (name, _) in files {
        let plain = |part: Component| matches!(part, Component::Normal(_));
        if name.is_empty() || !Path::new(name).components().all(plain) {
            return Err(InstallError::BadName((*name).to_owned()));
        }
    }
    let path = runtime_root.join(format!("kernel-{}", digest(files, python)));
    if path.is_dir() {
        return Ok(path);
    }
    let staged = runtime_root.join(format!(".kernel-{}", uuid::Uuid::new_v4().simple()));
    write(&staged, files)
        .and_then(|()| {
            compile(&staged, python);
            make_readable(&staged)?;
            match fs::rename(&staged, &path) {
                // Another process was faster with the same content.
                Err(_) if path.is_dir() => fs::remove_dir_all(&staged),
                other => other,
            }
        })
        .map_err(|source| InstallError::Io {
            path: path.clone(),
            source,
        })?;
    Ok(path)
}

fn digest(files: &[(&str, &str)], python: &Python) -> String {
    let mut hash = Sha256::new();
    let version = python.version_text();
    let parts = files.iter().flat_map(|(name, text)| [*name, *text]);
    for part in parts.chain([version.as_str()]) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hex::encode(hash.finalize())[..16].to_owned()
}

fn write(folder: &Path, files: &[(&str, &str)]) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    for (name, text) in files {
        let target = folder.join(name);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(target, text)?;
    }
    Ok(())
}

/// Only a matter of speed, so a failure is logged and the sources serve alone. `unchecked-hash`: the mount is read-only,
/// nothing can change behind the compiled files. The path baked into tracebacks is the one inside the sandbox.
fn compile(folder: &Path, python: &Python) {
    let status = Command::new(&python.executable)
        .args([
            "-I",
            "-m",
            "compileall",
            "-q",
            "--invalidation-mode",
            "unchecked-hash",
        ])
        .arg("-s")
        .arg(folder)
        .args(["-p", crate::sandbox::inside::KERNEL])
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !status.is_ok_and(|status| status.success()) {
        tracing::warn!(folder = %folder.display(), "kernel files could not be compiled; sandboxes start slower");
    }
}

/// The sandbox's uid is not ours; the service's umask must not decide what it may read.
pub(super) fn make_readable(path: &Path) -> std::io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    if metadata.is_symlink() {
        return Ok(());
    }
    let mode = metadata.permissions().mode();
    let wanted = match metadata.is_dir() || mode & 0o100 != 0 {
        true => mode | 0o555,
        false => mode | 0o444,
    };
    if wanted != mode {
        fs::set_permissions(path, fs::Permissions::from_mode(wanted))?;
    }
    if metadata.is_dir() {
        for entry in fs::read_dir(path)? {
            make_readable(&entry?.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_compiled_and_reused() {
        let runtime = tempfile::tempdir().unwrap();
        let python = Python::find().unwrap();
        let files = [("main.py", "import part.one\n"), ("part/one.py", "x = 1\n")];
        let first = install_kernel(runtime.path(), &files, &python).unwrap();
        assert_eq!(
            fs::read_to_string(first.join("part/one.py")).unwrap(),
            "x = 1\n"
        );
        assert_eq!(
            fs::read_dir(first.join("part/__pycache__"))
                .unwrap()
                .count(),
            1
        );
        assert_eq!(
            install_kernel(runtime.path(), &files, &python).unwrap(),
            first
        );
        let changed = [("main.py", "")];
        assert_ne!(
            install_kernel(runtime.path(), &changed, &python).unwrap(),
            first
        );
        assert_eq!(fs::read_dir(runtime.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_name_that_leads_elsewhere_is_refused() {
        let runtime = tempfile::tempdir().unwrap();
        let python = Python::find().unwrap();
        for name in ["../x.py", "/etc/x.py", ""] {
            let refused = install_kernel(runtime.path(), &[(name, "")], &python);
            assert!(matches!(refused, Err(InstallError::BadName(_))), "{name}");
        }
    }
}
