//! Rebuilds the binary when the kernel's files change: it carries them.

fn main() {
    println!("cargo::rerun-if-changed=kernel");
}
