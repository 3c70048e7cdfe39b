//! Compiled seccomp filters as a file, so that the helper of each sandbox only reads them.
//! Never compiles twice for one profile, and never installs a filter itself.
//! Invariant: a file is named by everything it was made from, and is complete once it has its name.

use std::path::{Path, PathBuf};

use seccompiler::{BpfProgram, TargetArch, sock_filter};
use sha2::{Digest, Sha256};

use super::seccomp::{SYSCALLS, SeccompError, compile};
use crate::sandbox::SECCOMP_PROFILE;

#[derive(Debug, thiserror::Error)]
pub enum FilterFileError {
    #[error(transparent)]
    Seccomp(#[from] SeccompError),
    #[error("seccomp filter {path}: {source}")]
    File {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("seccomp filter {0} is damaged")]
    Damaged(PathBuf),
}

/// Compiles the built-in profile for this machine into a file, once per profile, and gives its path.
pub fn install(runtime_root: &Path) -> Result<PathBuf, FilterFileError> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(SeccompError::from)?;
    let mut hash = Sha256::new();
    for part in [
        SECCOMP_PROFILE,
        SYSCALLS,
        std::env::consts::ARCH,
        env!("CARGO_PKG_VERSION"),
    ] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let digest = hex::encode(hash.finalize());
    let path = runtime_root.join(format!("seccomp-{}.bpf", &digest[..16]));
    if path.exists() {
        return Ok(path);
    }
    let bytes = encode(&compile(SECCOMP_PROFILE, arch)?);
    let staged = runtime_root.join(format!(".seccomp-{}", uuid::Uuid::new_v4().simple()));
    std::fs::write(&staged, bytes)
        .and_then(|()| std::fs::rename(&staged, &path))
        .map_err(|source| FilterFileError::File {
            path: path.clone(),
            source,
        })?;
    Ok(path)
}

/// Reads the programs that `install` wrote.
pub fn load(path: &Path) -> Result<Vec<BpfProgram>, FilterFileError> {
    let bytes = std::fs::read(path).map_err(|source| FilterFileError::File {
        path: path.to_owned(),
        source,
    })?;
    decode(&bytes).ok_or_else(|| FilterFileError::Damaged(path.to_owned()))
}

fn encode(programs: &[BpfProgram]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for program in programs {
        bytes.extend((program.len() as u32).to_le_bytes());
        for instruction in program {
            bytes.extend(instruction.code.to_le_bytes());
            bytes.extend([instruction.jt, instruction.jf]);
            bytes.extend(instruction.k.to_le_bytes());
        }
    }
    bytes
}

fn decode(mut bytes: &[u8]) -> Option<Vec<BpfProgram>> {
    let mut programs = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (body, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize * 8)?;
        let program = body.chunks_exact(8).map(|chunk| sock_filter {
            code: u16::from_le_bytes([chunk[0], chunk[1]]),
            jt: chunk[2],
            jf: chunk[3],
            k: u32::from_le_bytes([chunk[4], chunk[5], chunk[6], chunk[7]]),
        });
        programs.push(program.collect());
        bytes = rest;
    }
    (!programs.is_empty()).then_some(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_survive_the_way_through_a_file() {
        let programs = compile(SECCOMP_PROFILE, TargetArch::x86_64).unwrap();
        assert_eq!(decode(&encode(&programs)).unwrap(), programs);
        assert!(decode(&encode(&programs)[..100]).is_none());
        assert!(decode(&[]).is_none());
    }
}
