//! The root of a sandbox, assembled from the host: a skeleton of mount points, links and a small synthetic `/etc`.
//! Never copies secrets: from the host's `/etc` only the loader cache, alternatives, fonts, MIME types and public certificates.
//! Invariant: a skeleton is named by its content and never changes once it is in place, so running sandboxes keep theirs.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::python::Python;
use crate::sandbox::inside;

/// Copied rather than mounted: one skeleton serves every sandbox, and each mount less makes a start faster.
const COPIED_FROM_ETC: [&str; 6] = [
    "etc/ld.so.cache",
    "etc/alternatives",
    "etc/fonts",
    "etc/mime.types",
    "etc/ssl/openssl.cnf",
    "etc/ssl/certs/ca-certificates.crt",
];
const SYSTEM_FOLDERS: [&str; 6] = ["bin", "sbin", "lib", "lib64", "lib32", "libx32"];
const MAX_COPIED_BYTES: u64 = 4 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Entry {
    Directory,
    File(Vec<u8>),
    Link(PathBuf),
}

/// A skeleton in place, and the host folders that must be mounted over it.
#[derive(Debug, Clone)]
pub struct Root {
    pub path: PathBuf,
    pub host_folders: Vec<PathBuf>,
}

/// Builds the skeleton under `runtime_root`, unless the same one is there.
pub fn assemble(runtime_root: &Path, python: &Python) -> std::io::Result<Root> {
    let mut entries = BTreeMap::new();
    let mut host_folders = vec![PathBuf::from("/usr")];
    for name in SYSTEM_FOLDERS {
        let host = Path::new("/").join(name);
        match fs::read_link(&host) {
            // A merged /usr: the same link leads into the mounted /usr.
            Ok(target) => _ = entries.insert(PathBuf::from(name), Entry::Link(target)),
            Err(_) if host.is_dir() => host_folders.push(host),
            Err(_) => {}
        }
    }
    host_folders.extend(python.folders_outside_usr());
    let mount_points = ["/proc", "/dev", "/tmp", "/sys", "/root", "/var/tmp"];
    let own = [
        inside::WORKSPACE,
        inside::CONTROL,
        inside::KERNEL,
        inside::PACKAGES,
    ];
    for folder in mount_points.iter().chain(&own) {
        add_directory(&mut entries, Path::new(folder));
    }
    for folder in &host_folders {
        add_directory(&mut entries, folder);
    }
    add_etc(&mut entries);
    let path = place(runtime_root, &entries)?;
    Ok(Root { path, host_folders })
}

fn add_directory(entries: &mut BTreeMap<PathBuf, Entry>, folder: &Path) {
    let relative = folder.strip_prefix("/").unwrap_or(folder);
    let mut current = PathBuf::new();
    for part in relative {
        current.push(part);
        entries.entry(current.clone()).or_insert(Entry::Directory);
    }
}

fn add_etc(entries: &mut BTreeMap<PathBuf, Entry>) {
    add_directory(entries, Path::new("etc/ssl/certs"));
    let mut file = |path: &str, text: &str| {
        entries.insert(path.into(), Entry::File(text.as_bytes().to_vec()));
    };
    // Mount points for the files of the sandbox's own uid.
    file("etc/passwd", "");
    file("etc/group", "");
    file("etc/hostname", "sandbox\n");
    file(
        "etc/hosts",
        "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost\n",
    );
    file("etc/resolv.conf", "");
    file(
        "etc/nsswitch.conf",
        "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n",
    );
    if Path::new("/usr/share/zoneinfo/UTC").exists() {
        let target = Entry::Link("/usr/share/zoneinfo/UTC".into());
        entries.insert("etc/localtime".into(), target);
    }
    for path in COPIED_FROM_ETC {
        let mut budget = MAX_COPIED_BYTES;
        copy_in(entries, Path::new(path), &mut budget);
    }
}

/// Takes over one file or small tree of the host. What cannot be read is left out: nothing here is needed to start.
fn copy_in(entries: &mut BTreeMap<PathBuf, Entry>, relative: &Path, budget: &mut u64) {
    let host = Path::new("/").join(relative);
    let Ok(metadata) = fs::symlink_metadata(&host) else {
        return;
    };
    if metadata.is_symlink() {
        if let Ok(target) = fs::read_link(&host) {
            entries.insert(relative.to_owned(), Entry::Link(target));
        }
    } else if metadata.is_dir() {
        add_directory(entries, relative);
        let Ok(children) = fs::read_dir(&host) else {
            return;
        };
        for child in children.flatten() {
            copy_in(entries, &relative.join(child.file_name()), budget);
        }
    } else if metadata.is_file() && metadata.permissions().mode() & 0o004 != 0 {
        let Some(left) = budget.checked_sub(metadata.len()) else {
            return;
        };
        if let Ok(content) = fs::read(&host) {
            *budget = left;
            entries.insert(relative.to_owned(), Entry::File(content));
        }
    }
}

fn place(runtime_root: &Path, entries: &BTreeMap<PathBuf, Entry>) -> std::io::Result<PathBuf> {
    let path = runtime_root.join(format!("root-{}", digest(entries)));
    if path.is_dir() {
        return Ok(path);
    }
    let staged = runtime_root.join(format!(".root-{}", uuid::Uuid::new_v4().simple()));
    fs::create_dir_all(&staged)?;
    for (relative, entry) in entries {
        let target = staged.join(relative);
        match entry {
            Entry::Directory => fs::create_dir(&target)?,
            Entry::File(content) => fs::write(&target, content)?,
            Entry::Link(link) => symlink(link, &target)?,
        }
        match entry {
            Entry::Directory => fs::set_permissions(&target, fs::Permissions::from_mode(0o755))?,
            Entry::File(_) => fs::set_permissions(&target, fs::Permissions::from_mode(0o644))?,
            Entry::Link(_) => {}
        }
    }
    fs::set_permissions(&staged, fs::Permissions::from_mode(0o755))?;
    match fs::rename(&staged, &path) {
        // Another process was faster with the same content.
        Err(_) if path.is_dir() => fs::remove_dir_all(&staged)?,
        other => other?,
    }
    Ok(path)
}

fn digest(entries: &BTreeMap<PathBuf, Entry>) -> String {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    for (path, entry) in entries {
        part(path.as_os_str().as_encoded_bytes());
        match entry {
            Entry::Directory => part(b"d"),
            Entry::File(content) => {
                part(b"f");
                part(content);
            }
            Entry::Link(target) => {
                part(b"l");
                part(target.as_os_str().as_encoded_bytes());
            }
        }
    }
    hex::encode(hash.finalize())[..16].to_owned()
}

/// The user database of one uid and gid, as two files shared by every sandbox that has them.
pub fn user_files(runtime_root: &Path, uid: u32, gid: u32) -> std::io::Result<(PathBuf, PathBuf)> {
    let passwd = format!(
        "root:x:0:0:root:/root:/usr/sbin/nologin\nsandbox:x:{uid}:{gid}:sandbox:/tmp:/bin/bash\n"
    );
    let group = format!("root:x:0:\nsandbox:x:{gid}:\n");
    let folder = runtime_root.join("users");
    let passwd_path = folder.join(format!("passwd-{uid}-{gid}"));
    let group_path = folder.join(format!("group-{gid}"));
    for (path, text) in [(&passwd_path, passwd), (&group_path, group)] {
        if path.exists() {
            continue;
        }
        fs::create_dir_all(&folder)?;
        let staged = folder.join(format!(".{}", uuid::Uuid::new_v4().simple()));
        fs::write(&staged, text)?;
        fs::set_permissions(&staged, fs::Permissions::from_mode(0o644))?;
        fs::rename(&staged, path)?;
    }
    Ok((passwd_path, group_path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn python() -> Python {
        Python {
            executable: "/opt/py/bin/python3".into(),
            prefix: "/opt/py".into(),
            version: (3, 12, 1),
            has_pip: true,
        }
    }

    #[test]
    fn the_same_host_gives_the_same_skeleton() {
        let runtime = tempfile::tempdir().unwrap();
        let first = assemble(runtime.path(), &python()).unwrap();
        let second = assemble(runtime.path(), &python()).unwrap();
        assert_eq!(first.path, second.path);
        assert_eq!(fs::read_dir(runtime.path()).unwrap().count(), 1);
    }

    #[test]
    fn every_mount_point_exists_and_no_host_secret_does() {
        let runtime = tempfile::tempdir().unwrap();
        let root = assemble(runtime.path(), &python()).unwrap();
        for folder in [
            "usr",
            "proc",
            "dev",
            "tmp",
            "workspace",
            "run/cellblock",
            "opt/cellblock/kernel",
            "opt/cellblock/packages",
            "opt/py",
        ] {
            assert!(root.path.join(folder).is_dir(), "{folder}");
        }
        assert!(root.path.join("etc/passwd").is_file());
        for secret in ["etc/shadow", "etc/machine-id", "etc/ssh", "etc/ssl/private"] {
            assert!(!root.path.join(secret).exists(), "{secret}");
        }
        assert!(
            root.host_folders.contains(&"/usr".into())
                && root.host_folders.contains(&"/opt/py".into())
        );
    }

    #[test]
    fn user_files_name_the_sandbox_user() {
        let runtime = tempfile::tempdir().unwrap();
        let (passwd, group) = user_files(runtime.path(), 65532, 100).unwrap();
        assert!(
            fs::read_to_string(passwd)
                .unwrap()
                .contains("sandbox:x:65532:100:")
        );
        assert!(
            fs::read_to_string(group)
                .unwrap()
                .contains("sandbox:x:100:")
        );
    }
}
