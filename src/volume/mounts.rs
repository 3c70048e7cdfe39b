//! Every mount below a folder, for those who clean up a whole work root.
//! Never unmounts what lies elsewhere. Invariant: the innermost goes first.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::mount::UnmountFlags;

/// Unmounts all file systems below `root`; gives their number.
pub fn unmount_all_below(root: &Path) -> io::Result<usize> {
    let mounts = below(root, &fs::read("/proc/self/mountinfo")?);
    for target in mounts.iter().rev() {
        rustix::mount::unmount(target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?;
    }
    Ok(mounts.len())
}

/// In the order in which they were mounted.
fn below(root: &Path, mountinfo: &[u8]) -> Vec<PathBuf> {
    let lines = mountinfo.split(|byte| *byte == b'\n');
    let points = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    let paths = points.map(|point| PathBuf::from(OsString::from_vec(unescape(point))));
    paths
        .filter(|path| path.starts_with(root) && path != root)
        .collect()
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
    fn only_mounts_below_the_folder_are_found_whatever_their_names() {
        let table = b"20 1 8:1 / / rw - ext4 /dev/a rw\n\
            21 20 7:0 / /srv/work rw - ext4 /dev/b rw\n\
            22 21 7:1 / /srv/work/sessions/a\\040b/workspace rw - ext4 /dev/loop1 rw\n\
            23 21 7:2 / /srv/workshop/c rw - ext4 /dev/loop2 rw\n";
        assert_eq!(
            below(Path::new("/srv/work"), table),
            [PathBuf::from("/srv/work/sessions/a b/workspace")]
        );
    }
}
