//! Loop devices: an image file as a block device, for as long as something has it mounted.
//! Never leaves a device behind: the kernel takes it away with its last user (`AUTOCLEAR`).
//! Invariant: an image that already has a device gets that one, never a second.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::ioctl::{Getter, Ioctl, IoctlOutput, Opcode, Setter};

const LOOP_GET_STATUS64: Opcode = 0x4C05;
const LOOP_CONFIGURE: Opcode = 0x4C0A;
const LOOP_CTL_GET_FREE: Opcode = 0x4C82;
const AUTOCLEAR: u32 = 4;
/// Past the page cache of the host's file system: what is written is cached once, not twice, and `fsync` has less to wait for.
const DIRECT_IO: u32 = 16;
pub const BLOCK_BYTES: u32 = 4096;
/// How many times a device that somebody else has taken first is given up for another.
const MAX_TRIES: usize = 64;

/// A device, open; it stays attached while this or a mount of it lives.
pub struct LoopDevice {
    pub path: PathBuf,
    _open: File,
}

/// `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// `LOOP_CTL_GET_FREE`: no argument, and the number is what the call returns.
struct GetFree;

#[expect(unsafe_code, reason = "rustix has no loop devices")]
// SAFETY: the call takes no argument, writes to no memory of ours and returns a number.
unsafe impl Ioctl for GetFree {
    type Output = i32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        LOOP_CTL_GET_FREE
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(
        number: IoctlOutput,
        _: *mut std::ffi::c_void,
    ) -> rustix::io::Result<i32> {
        Ok(number)
    }
}

/// Attaches an image to a free device.
pub fn attach(image: &File) -> io::Result<LoopDevice> {
    let control = File::options()
        .read(true)
        .write(true)
        .open("/dev/loop-control")?;
    for _ in 0..MAX_TRIES {
        let path = device_path(free_number(&control)?);
        let device = File::options().read(true).write(true).open(&path)?;
        match configure(&device, image) {
            Ok(()) => {
                return Ok(LoopDevice {
                    path,
                    _open: device,
                });
            }
            // Somebody else was quicker.
            Err(Errno::BUSY) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::other("no loop device could be had"))
}

/// The device that an image is attached to already, if there is one: a mount that another mount namespace still holds.
pub fn find(image: &File) -> io::Result<Option<LoopDevice>> {
    let wanted = image.metadata()?;
    for entry in fs::read_dir("/sys/block")?.flatten() {
        // Only devices that are in use have this folder.
        if !entry.path().join("loop").exists() {
            continue;
        }
        let path = PathBuf::from("/dev").join(entry.file_name());
        let Ok(open) = File::options().read(true).write(true).open(&path) else {
            continue;
        };
        let same = |info: LoopInfo| (info.device, info.inode) == (wanted.dev(), wanted.ino());
        if status(&open).is_ok_and(same) {
            return Ok(Some(LoopDevice { path, _open: open }));
        }
    }
    Ok(None)
}

fn device_path(number: i32) -> PathBuf {
    PathBuf::from(format!("/dev/loop{number}"))
}

#[expect(unsafe_code, reason = "rustix has no loop devices")]
fn free_number(control: &File) -> rustix::io::Result<i32> {
    // SAFETY: see `GetFree`; a file that is no loop control refuses the call.
    unsafe { rustix::ioctl::ioctl(control, GetFree) }
}

#[expect(unsafe_code, reason = "rustix has no loop devices")]
fn configure(device: &File, image: &File) -> rustix::io::Result<()> {
    let config = LoopConfig {
        fd: image.as_raw_fd().unsigned_abs(),
        block_size: BLOCK_BYTES,
        info: LoopInfo {
            flags: AUTOCLEAR | DIRECT_IO,
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            file_name: [0; 64],
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        },
        reserved: [0; 8],
    };
    // SAFETY: LOOP_CONFIGURE reads one `struct loop_config`, which `LoopConfig` is laid out as.
    unsafe { rustix::ioctl::ioctl(device, Setter::<LOOP_CONFIGURE, LoopConfig>::new(config)) }
}

#[expect(unsafe_code, reason = "rustix has no loop devices")]
fn status(device: &File) -> rustix::io::Result<LoopInfo> {
    // SAFETY: LOOP_GET_STATUS64 fills one `struct loop_info64`, which `LoopInfo` is laid out as, or fails.
    unsafe { rustix::ioctl::ioctl(device, Getter::<LOOP_GET_STATUS64, LoopInfo>::new()) }
}
