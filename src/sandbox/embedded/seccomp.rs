//! The system-call filter: `seccomp.json` (Docker's profile format) compiled to BPF programs.
//! Never decides policy: the allowlist is the JSON file, which the docker backend hands to the engine as it is.
//! Invariant: a call that no rule allows is refused with an errno, whatever its architecture or ABI.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};
use serde::Deserialize;

pub(super) const SYSCALLS: &str = include_str!("syscalls.txt");

const RETURN: u16 = 0x06;
const LOAD_WORD: u16 = 0x20;
const JUMP_IF_GREATER: u16 = 0x25;
const RET_KILL_PROCESS: u32 = 0x8000_0000;
const RET_ERRNO: u32 = 0x0005_0000;
const RET_ALLOW: u32 = 0x7fff_0000;
const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    #[error("seccomp profile is not valid: {0}")]
    Profile(#[from] serde_json::Error),
    #[error("seccomp profile uses {0}, which this program does not know")]
    Unsupported(String),
    #[error("seccomp filter could not be compiled: {0}")]
    Compile(#[from] seccompiler::BackendError),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Profile {
    default_action: String,
    default_errno_ret: u32,
    syscalls: Vec<ProfileRule>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ProfileRule {
    names: Vec<String>,
    action: String,
    errno_ret: Option<u32>,
    #[serde(default)]
    args: Vec<ProfileArgument>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ProfileArgument {
    index: u8,
    value: u64,
    #[serde(default)]
    value_two: u64,
    op: String,
}

impl ProfileArgument {
    fn condition(&self) -> Result<SeccompCondition, SeccompError> {
        let (op, value) = match self.op.as_str() {
            "SCMP_CMP_EQ" => (SeccompCmpOp::Eq, self.value),
            "SCMP_CMP_NE" => (SeccompCmpOp::Ne, self.value),
            "SCMP_CMP_LT" => (SeccompCmpOp::Lt, self.value),
            "SCMP_CMP_LE" => (SeccompCmpOp::Le, self.value),
            "SCMP_CMP_GT" => (SeccompCmpOp::Gt, self.value),
            "SCMP_CMP_GE" => (SeccompCmpOp::Ge, self.value),
            "SCMP_CMP_MASKED_EQ" => (SeccompCmpOp::MaskedEq(self.value), self.value_two),
            other => return Err(SeccompError::Unsupported(other.to_owned())),
        };
        // The only `NE` is on an int argument. The kernel drops its high bits, so they must not make it differ.
        let width = match op {
            SeccompCmpOp::Ne => SeccompCmpArgLen::Dword,
            _ => SeccompCmpArgLen::Qword,
        };
        Ok(SeccompCondition::new(self.index, width, op, value)?)
    }
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Compiles a profile into the programs to install, in this order. The kernel runs the newest program first and, among
/// equally strict answers, keeps the first one: so the allowlist (EPERM) comes first and the programs with a kinder errno after it.
pub fn compile(profile: &str, arch: TargetArch) -> Result<Vec<BpfProgram>, SeccompError> {
    let profile: Profile = serde_json::from_str(profile)?;
    if profile.default_action != "SCMP_ACT_ERRNO" {
        return Err(SeccompError::Unsupported(profile.default_action));
    }
    let numbers = syscall_numbers(arch);
    let mut allowed = Rules::new();
    let mut refused: BTreeMap<u32, Rules> = BTreeMap::new();
    for rule in &profile.syscalls {
        let rules = match (rule.action.as_str(), rule.errno_ret) {
            ("SCMP_ACT_ALLOW", _) => &mut allowed,
            ("SCMP_ACT_ERRNO", Some(errno)) => refused.entry(errno).or_default(),
            (other, _) => return Err(SeccompError::Unsupported(other.to_owned())),
        };
        add_rule(rules, rule, &numbers)?;
    }
    let default = SeccompAction::Errno(profile.default_errno_ret);
    let mut programs = vec![program(allowed, default, SeccompAction::Allow, arch)?];
    for (errno, rules) in refused {
        programs.push(program(
            rules,
            SeccompAction::Allow,
            SeccompAction::Errno(errno),
            arch,
        )?);
    }
    let newest = numbers.values().copied().max().unwrap_or(0);
    programs.push(unknown_calls_are_missing(newest));
    Ok(programs)
}

fn add_rule(
    rules: &mut Rules,
    rule: &ProfileRule,
    numbers: &BTreeMap<&str, u32>,
) -> Result<(), SeccompError> {
    // A name that this architecture lacks (`open` on aarch64) has nothing to filter.
    for number in rule
        .names
        .iter()
        .filter_map(|name| numbers.get(name.as_str()))
    {
        let chain = rules.entry(i64::from(*number)).or_default();
        if rule.args.is_empty() {
            continue;
        }
        let conditions = rule
            .args
            .iter()
            .map(ProfileArgument::condition)
            .collect::<Result<Vec<_>, _>>()?;
        chain.push(SeccompRule::new(conditions)?);
    }
    Ok(())
}

fn program(
    rules: Rules,
    otherwise: SeccompAction,
    matched: SeccompAction,
    arch: TargetArch,
) -> Result<BpfProgram, SeccompError> {
    let mut program: BpfProgram =
        SeccompFilter::new(rules, otherwise, matched, arch)?.try_into()?;
    // seccompiler kills on a foreign architecture (`int 0x80`); a refusal is enough and easier to explain.
    for instruction in &mut program {
        if instruction.code == RETURN && instruction.k == RET_KILL_PROCESS {
            instruction.k = RET_ERRNO | EPERM;
        }
    }
    Ok(program)
}

/// Calls newer than our table answer ENOSYS, as runc does for Docker, so that a libc that tries a new call first falls
/// back to the old one. x32 calls carry bit 30 in their number and end here too.
fn unknown_calls_are_missing(newest: u32) -> BpfProgram {
    let instruction = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    vec![
        instruction(LOAD_WORD, 0, 0, 0),
        instruction(JUMP_IF_GREATER, 0, 1, newest),
        instruction(RETURN, 0, 0, RET_ERRNO | ENOSYS),
        instruction(RETURN, 0, 0, RET_ALLOW),
    ]
}

fn syscall_numbers(arch: TargetArch) -> BTreeMap<&'static str, u32> {
    let column = match arch {
        TargetArch::aarch64 => 2,
        _ => 1,
    };
    SYSCALLS
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            Some((*fields.first()?, fields.get(column)?.parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::SECCOMP_PROFILE;

    const REFUSED: &[&str] = &[
        "ptrace",
        "process_vm_readv",
        "process_vm_writev",
        "pidfd_getfd",
        "io_uring_setup",
        "io_uring_enter",
        "io_uring_register",
        "userfaultfd",
        "keyctl",
        "add_key",
        "request_key",
        "bpf",
        "perf_event_open",
        "memfd_secret",
        "name_to_handle_at",
        "open_by_handle_at",
        "shmget",
        "shmat",
        "semget",
        "semop",
        "msgget",
        "msgsnd",
        "mq_open",
        "mq_notify",
        "vmsplice",
        "mount",
        "umount2",
        "pivot_root",
        "move_mount",
        "open_tree",
        "fsopen",
        "fsmount",
        "fsconfig",
        "fspick",
        "mount_setattr",
        "unshare",
        "setns",
        "chroot",
        "reboot",
        "kexec_load",
        "init_module",
        "finit_module",
        "delete_module",
        "swapon",
        "acct",
        "settimeofday",
        "clock_settime",
        "quotactl",
        "syslog",
        "kcmp",
        "lookup_dcookie",
    ];

    fn run(programs: &[BpfProgram], number: u32, args: [u64; 6], audit_arch: u32) -> u32 {
        let mut answer = RET_ALLOW;
        for program in programs.iter().rev() {
            let this = interpret(program, number, args, audit_arch);
            if (this & 0xffff_0000) as i32 <= (answer & 0xffff_0000) as i32
                && this & 0xffff_0000 != answer & 0xffff_0000
            {
                answer = this;
            }
        }
        answer
    }

    /// Just enough classic BPF for what seccompiler emits.
    fn interpret(program: &BpfProgram, number: u32, args: [u64; 6], audit_arch: u32) -> u32 {
        let word = |offset: u32| match offset {
            0 => number,
            4 => audit_arch,
            16.. => {
                let argument = args[(offset as usize - 16) / 8];
                if offset.is_multiple_of(8) {
                    argument as u32
                } else {
                    (argument >> 32) as u32
                }
            }
            _ => 0,
        };
        let (mut at, mut register) = (0usize, 0u32);
        loop {
            let instruction = &program[at];
            at += 1;
            let jump = |taken: bool| {
                usize::from(if taken {
                    instruction.jt
                } else {
                    instruction.jf
                })
            };
            match instruction.code {
                0x20 => register = word(instruction.k),
                0x54 => register &= instruction.k,
                0x05 => at += instruction.k as usize,
                0x15 => at += jump(register == instruction.k),
                0x25 => at += jump(register > instruction.k),
                0x35 => at += jump(register >= instruction.k),
                RETURN => return instruction.k,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    const X86_64: u32 = 0xc000_003e;
    const I386: u32 = 0x4000_0003;
    const AARCH64: u32 = 0xc000_00b7;
    const REFUSE: u32 = RET_ERRNO | EPERM;
    const MISSING: u32 = RET_ERRNO | ENOSYS;

    fn x86(name: &str, args: &[u64]) -> u32 {
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        let programs = compile(SECCOMP_PROFILE, TargetArch::x86_64).unwrap();
        run(
            &programs,
            syscall_numbers(TargetArch::x86_64)[name],
            all,
            X86_64,
        )
    }

    #[test]
    fn what_the_threat_model_names_is_refused_on_both_architectures() {
        for (arch, audit) in [(TargetArch::x86_64, X86_64), (TargetArch::aarch64, AARCH64)] {
            let programs = compile(SECCOMP_PROFILE, arch).unwrap();
            let numbers = syscall_numbers(arch);
            for name in REFUSED.iter().filter(|name| numbers.contains_key(*name)) {
                assert_eq!(
                    run(&programs, numbers[name], [0; 6], audit),
                    REFUSE,
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn every_name_in_the_profile_is_a_known_system_call() {
        let profile: Profile = serde_json::from_str(SECCOMP_PROFILE).unwrap();
        for name in profile.syscalls.iter().flat_map(|rule| &rule.names) {
            assert!(
                SYSCALLS
                    .lines()
                    .any(|line| line.split(' ').next() == Some(name)),
                "{name}"
            );
        }
    }

    #[test]
    fn clone3_and_calls_from_the_future_do_not_exist() {
        assert_eq!(x86("clone3", &[]), MISSING);
        let programs = compile(SECCOMP_PROFILE, TargetArch::x86_64).unwrap();
        assert_eq!(run(&programs, 9_999, [0; 6], X86_64), MISSING);
    }

    #[test]
    fn foreign_abis_are_refused() {
        let programs = compile(SECCOMP_PROFILE, TargetArch::x86_64).unwrap();
        assert_eq!(run(&programs, 4, [0; 6], I386), REFUSE, "int 0x80 write");
        assert_eq!(
            run(&programs, 0x4000_0001, [0; 6], X86_64),
            MISSING,
            "x32 write"
        );
    }

    #[test]
    fn only_local_and_internet_sockets_open() {
        for family in 0..64 {
            let expected = if [1, 2, 10].contains(&family) {
                RET_ALLOW
            } else {
                REFUSE
            };
            assert_eq!(x86("socket", &[family, 1, 0]), expected, "family {family}");
        }
        assert_eq!(x86("socket", &[2, 1, 132]), REFUSE, "SCTP");
        assert_eq!(x86("socket", &[2, 1, 262]), REFUSE, "MPTCP");
        assert_eq!(x86("socketpair", &[1, 1, 0]), RET_ALLOW);
        assert_eq!(x86("socketpair", &[16, 3, 0]), REFUSE);
    }

    #[test]
    fn threads_start_and_namespaces_do_not() {
        assert_eq!(x86("clone", &[0x003d_0f00]), RET_ALLOW, "pthread_create");
        for flag in [
            0x0002_0000,
            0x0200_0000,
            0x0400_0000,
            0x0800_0000,
            0x1000_0000,
            0x2000_0000,
            0x4000_0000,
        ] {
            assert_eq!(x86("clone", &[flag | 17]), REFUSE, "{flag:#x}");
        }
    }

    #[test]
    fn device_nodes_and_terminal_injection_are_refused() {
        assert_eq!(x86("mknod", &[0, 0x1000 | 0o644]), RET_ALLOW, "fifo");
        assert_eq!(
            x86("mknod", &[0, 0x2000 | 0o644]),
            REFUSE,
            "character device"
        );
        assert_eq!(
            x86("mknodat", &[0, 0, 0x6000 | 0o644]),
            REFUSE,
            "block device"
        );
        assert_eq!(x86("ioctl", &[0, 0x5401]), RET_ALLOW, "TCGETS");
        assert_eq!(x86("ioctl", &[0, 0x5412]), REFUSE, "TIOCSTI");
        assert_eq!(
            x86("ioctl", &[0, 0x1_0000_5412]),
            REFUSE,
            "TIOCSTI with a high bit"
        );
    }
}
