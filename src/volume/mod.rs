//! The file system of one workspace: an ext4 image of limited size, mounted over the session's `workspace/`.
//! Never looks at the files in it. A full one is full for its own session only: `ENOSPC`, whatever the code does.
//! Invariant: one image is written to by one mounted file system at most, and a folder without an image has no mount.

mod disk;
mod image;
mod loop_device;
mod mounts;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

pub use disk::HostDisk;
pub use mounts::unmount_workspaces;

use image::{Repair, Template};

const IMAGE: &str = "workspace.img";
const MOUNT_POINT: &str = "workspace";
/// How the folder begins in which a start tries whether images can be mounted.
const TRIAL: &str = "trial-";
/// After an error nothing more is written: half a file system is worse than one that says no. `discard` gives the host the
/// room of deleted files back.
const OPTIONS: &std::ffi::CStr = c"discard,errors=remount-ro";
/// A device that the kernel is just taking away cannot be mounted; the image is attached anew then.
const MOUNT_TRIES: usize = 20;
const DETACH_LOOKS: usize = 500;
const MOUNT_PAUSE: std::time::Duration = std::time::Duration::from_millis(10);

/// How much one workspace may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeSize {
    pub bytes: u64,
    pub inodes: u64,
}

impl VolumeSize {
    /// With room for folders, links and files under way beside the files that count.
    pub fn new(bytes: u64, max_files: usize) -> Self {
        Self {
            bytes,
            inodes: max_files as u64 * 2 + 1024,
        }
    }
}

/// Which limit on workspaces is in force for new sessions.
pub enum Volumes {
    /// A file system of limited size for each.
    Hard(HardVolumes),
    /// A look at the size, twice a second while code runs.
    Soft,
}

/// What became of a workspace that an earlier service left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adopted {
    AsItWas,
    /// The host was restarted, or somebody unmounted it. What was on its way to the disk may be missing.
    MountedAgain,
    /// What is stored of it has to be brought back.
    Empty,
}

pub struct HardVolumes {
    template: Template,
}

impl Volumes {
    /// Makes the template and tries once, in `folder`, whether images can be mounted here. The error says what is missing.
    pub fn hard(folder: &Path, usual_size: VolumeSize) -> io::Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Err(io::Error::other("only root can mount file systems"));
        }
        let template = Template::prepare(folder, usual_size)?;
        let volumes = Self::Hard(HardVolumes { template });
        let trial = folder.join(format!("{TRIAL}{}", uuid::Uuid::new_v4().simple()));
        fs::create_dir(&trial)?;
        let tried = volumes
            .provide(&trial, usual_size)
            .and_then(|()| unmount(&trial));
        let _best_effort = crate::workspace::remove_tree(&trial);
        tried.map(|()| volumes)
    }

    pub fn word(&self) -> &'static str {
        match self {
            Self::Hard(_) => "hard",
            Self::Soft => "soft",
        }
    }

    /// Gives a session's new folder its place for files, with a file system of its own where that is the rule.
    pub fn provide(&self, folder: &Path, size: VolumeSize) -> io::Result<()> {
        match fs::create_dir(folder.join(MOUNT_POINT)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let image = folder.join(IMAGE);
        if let Self::Hard(hard) = self
            && !image.exists()
        {
            hard.template.instantiate(&image, size)?;
        }
        Ok(mount_if_needed(folder)?)
    }
}

/// Whether the session's files lie in a file system of their own.
pub fn is_hard(folder: &Path) -> bool {
    folder.join(IMAGE).exists()
}

/// Mounts the image of a session that an earlier service left, for example before the host was started again. One that
/// is damaged is repaired. One beyond repair is put aside, and the folder gets what a new one would have. Whatever else
/// keeps it from being mounted, such as a want of devices or memory, is an error, and the image stays as it is.
pub fn adopt(volumes: &Volumes, folder: &Path, size: VolumeSize) -> io::Result<Adopted> {
    if !is_hard(folder) || is_mounted(folder)? {
        return Ok(Adopted::AsItWas);
    }
    match mount_if_needed(folder) {
        Ok(()) => return Ok(Adopted::MountedAgain),
        Err(MountError::Host(error)) => return Err(error),
        Err(MountError::Refused(_)) => {}
    }
    let image = folder.join(IMAGE);
    tracing::warn!(image = %image.display(), "a workspace cannot be mounted; repairing it");
    wait_until_detached(&image)?;
    if image::repair(&image)? == Repair::Tried {
        match mount_if_needed(folder) {
            Ok(()) => return Ok(Adopted::MountedAgain),
            Err(MountError::Refused(Errno::UCLEAN | Errno::INVAL)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    tracing::error!(image = %image.display(), "a workspace is beyond repair; put aside");
    fs::rename(&image, image.with_extension("img.broken"))?;
    volumes.provide(folder, size)?;
    Ok(Adopted::Empty)
}

/// Whether the file system has had an error, after which it takes no more writes. The mount itself does not show that.
pub fn has_failed(folder: &Path) -> bool {
    let Ok(mounted) = fs::symlink_metadata(folder.join(MOUNT_POINT)) else {
        return false;
    };
    let device = rustix::fs::minor(mounted.dev());
    let count = fs::read_to_string(format!("/sys/fs/ext4/loop{device}/errors_count"));
    is_hard(folder) && count.is_ok_and(|count| count.trim() != "0")
}

/// Mounts a file system anew that had an error. Nobody may have it open; its sandbox is gone.
pub fn mount_anew(folder: &Path) -> io::Result<()> {
    let image = folder.join(IMAGE);
    rustix::mount::unmount(folder.join(MOUNT_POINT), UnmountFlags::NOFOLLOW)?;
    let repaired = wait_until_detached(&image).and_then(|()| image::repair(&image));
    // Also one that is not repaired: its files can be read.
    mount_if_needed(folder)?;
    match repaired? {
        Repair::Tried => Ok(()),
        Repair::BeyondRepair => Err(io::Error::other("it cannot be repaired")),
    }
}

/// A container that is just being made has a copy of every mount for a moment. As long as somebody has, it is the same file
/// system, error and all, and must not be repaired under them.
fn wait_until_detached(image: &Path) -> io::Result<()> {
    let image = File::open(image)?;
    for _ in 0..DETACH_LOOKS {
        if loop_device::find(&image)?.is_none() {
            return Ok(());
        }
        std::thread::sleep(MOUNT_PAUSE);
    }
    Err(io::Error::other("another process still has it mounted"))
}

/// Takes the mount away. The sandbox is gone; whoever of ours still reads a file may finish.
pub fn unmount(folder: &Path) -> io::Result<()> {
    let target = folder.join(MOUNT_POINT);
    while is_mounted(folder)? {
        let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        rustix::mount::unmount(&target, flags)?;
    }
    Ok(())
}

/// Why an image is not mounted.
#[derive(Debug, thiserror::Error)]
enum MountError {
    /// It did not come to that: no such file, no device. This says nothing about what is in the image.
    #[error(transparent)]
    Host(#[from] io::Error),
    /// It was attached to a device, and the operating system would not mount that.
    #[error("mounting it: {0}")]
    Refused(Errno),
}

impl From<MountError> for io::Error {
    fn from(error: MountError) -> Self {
        match error {
            MountError::Host(error) => error,
            MountError::Refused(errno) => errno.into(),
        }
    }
}

fn mount_if_needed(folder: &Path) -> Result<(), MountError> {
    let image = folder.join(IMAGE);
    if !image.exists() || is_mounted(folder)? {
        return Ok(());
    }
    let image = File::options().read(true).write(true).open(image)?;
    let target = folder.join(MOUNT_POINT);
    let mut outcome = Ok(());
    for _ in 0..MOUNT_TRIES {
        let device = match loop_device::find(&image)? {
            Some(device) => device,
            None => loop_device::attach(&image)?,
        };
        outcome = mount(&device.path, &target);
        match &outcome {
            Err(Errno::NXIO) => std::thread::sleep(MOUNT_PAUSE),
            _ => break,
        }
    }
    outcome.map_err(MountError::Refused)?;
    // mkfs makes it for repairs; it would show up among the session's files.
    let _not_there_any_more = fs::remove_dir(target.join("lost+found"));
    Ok(())
}

fn mount(device: &Path, target: &Path) -> Result<(), Errno> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
    rustix::mount::mount(device, target, "ext4", flags, OPTIONS)
}

/// A mounted file system has a device number of its own.
fn is_mounted(folder: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(folder.join(MOUNT_POINT)) {
        Ok(inner) => Ok(inner.dev() != fs::symlink_metadata(folder)?.dev()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
