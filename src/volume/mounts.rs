//! The workspaces that are mounted below a work root, for those who clean up a whole one.
//! Never unmounts what somebody else mounted there. Invariant: the innermost goes first.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::mount::UnmountFlags;

/// Unmounts all workspaces of a work root; gives their number.
pub fn unmount_workspaces(work_root: &Path) -> io::Result<usize> {
    let mounts = workspaces(work_root, &fs::read("/proc/self/mountinfo")?);
    for target in mounts.iter().rev() {
        rustix::mount::unmount(target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?;
    }
    Ok(mounts.len())
}

/// In the order in which they were mounted.
fn workspaces(work_root: &Path, mountinfo: &[u8]) -> Vec<PathBuf> {
    let lines = mountinfo.split(|byte| *byte == b'\n');
    let points = lines.filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let point = fields.nth(4)?;
        // Optional fields, a dash, the type, the source.
        let source = fields.skip_while(|field| *field != b"-").nth(2)?;
        source.starts_with(b"/dev/loop").then_some(point)
    });
    let paths = points.map(|point| PathBuf::from(OsString::from_vec(unescape(point))));
    paths.filter(|path| is_workspace(work_root, path)).collect()
}

/// Whether a session, one of the pool or of the trash, or the trial at a start has its files there.
fn is_workspace(work_root: &Path, path: &Path) -> bool {
    let Ok(inner) = path.strip_prefix(work_root) else {
        return false;
    };
    let parts: Option<Vec<&str>> = inner.iter().map(|part| part.to_str()).collect();
    match parts.unwrap_or_default()[..] {
        ["sessions", _, _, super::MOUNT_POINT] => true,
        ["pool" | "trash", _, super::MOUNT_POINT] => true,
        ["runtime", folder, super::MOUNT_POINT] => folder.starts_with(super::TRIAL),
        _ => false,
    }
}

/// The kernel writes blanks and backslashes as three octal digits.
fn unescape(escaped: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped;
    while let Some((first, after)) = rest.split_first() {
        let octal = (*first == b'\\')
            .then(|| {
                after
                    .get(..3)
                    .and_then(|digits| std::str::from_utf8(digits).ok())
            })
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_workspaces_are_found_whatever_their_names() {
        let table = b"20 1 8:1 / / rw - ext4 /dev/a rw\n\
            21 20 7:0 / /srv/w\\040ork rw shared:1 - ext4 /dev/loop0 rw\n\
            22 21 7:1 / /srv/w\\040ork/sessions/a/b/workspace rw shared:2 master:1 - ext4 /dev/loop1 rw\n\
            23 21 7:2 / /srv/w\\040ork/pool/c/workspace rw - ext4 /dev/loop2 rw\n\
            24 21 7:3 / /srv/w\\040ork/trash/d/workspace rw - ext4 /dev/loop3 rw\n\
            25 21 7:4 / /srv/w\\040ork/runtime/trial-e/workspace rw - ext4 /dev/loop4 rw\n\
            26 21 0:9 / /srv/w\\040ork/sessions/a/c/workspace rw - nfs host:/x rw\n\
            27 21 7:5 / /srv/w\\040ork/s3 rw - ext4 /dev/loop5 rw\n\
            28 21 7:6 / /srv/w\\040ork/sessions/a/b/workspace/inner rw - ext4 /dev/loop6 rw\n\
            29 21 7:7 / /srv/workshop/sessions/a/b/workspace rw - ext4 /dev/loop7 rw\n";
        let found = workspaces(Path::new("/srv/w ork"), table);
        let inner = [
            "sessions/a/b/workspace",
            "pool/c/workspace",
            "trash/d/workspace",
            "runtime/trial-e/workspace",
        ];
        let expected = inner.map(|inner| Path::new("/srv/w ork").join(inner));
        assert_eq!(found, expected);
    }
}
