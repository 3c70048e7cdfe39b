//! The manifest parser: valid paths or nothing, and what was written reads the same.

use cellblock::model::path::WorkspacePath;
use cellblock::store::Manifest;

use super::paths::check_path;

pub fn check(input: &[u8]) {
    let Some(manifest) = Manifest::from_json(input) else {
        return;
    };
    manifest.entries.keys().for_each(check_path);
    let again = Manifest::from_json(&manifest.to_json()).expect("what was written can be read");
    assert_eq!(storable(&again), storable(&manifest));
}

fn storable(manifest: &Manifest) -> Vec<WorkspacePath> {
    let paths = manifest.entries.keys();
    paths
        .filter(|path| path.to_key().is_ok())
        .cloned()
        .collect()
}
