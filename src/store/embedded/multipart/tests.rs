//! Tests of multipart uploads on disk: their clean-up, their names and their ETag.
//! Never goes through HTTP; the integration tests do.
//! Invariant: every test has a store of its own.

use super::*;

fn store() -> (tempfile::TempDir, ObjectStore) {
    let folder = tempfile::tempdir().unwrap();
    let store = ObjectStore::open(&Directory::open_root(folder.path()).unwrap()).unwrap();
    store.create_bucket("bucket").unwrap();
    (folder, store)
}

#[test]
fn only_uploads_older_than_the_limit_are_removed() {
    let (_folder, store) = store();
    let headers = ObjectHeaders::default;
    store.create_upload("bucket", "k", headers()).unwrap();
    assert_eq!(
        store.remove_uploads_before(unix_ms_now() - 60_000).unwrap(),
        0
    );
    assert_eq!(store.uploads_of("bucket").unwrap().len(), 1);
    assert_eq!(
        store.remove_uploads_before(unix_ms_now() + 60_000).unwrap(),
        1
    );
    assert!(store.uploads_of("bucket").unwrap().is_empty());
}

#[test]
fn an_upload_whose_record_is_damaged_is_removed() {
    let (folder, store) = store();
    let id = store
        .create_upload("bucket", "k", ObjectHeaders::default())
        .unwrap();
    let file = folder
        .path()
        .join("uploads/bucket")
        .join(id)
        .join(UPLOAD_FILE);
    std::fs::write(file, "garbage").unwrap();
    assert_eq!(store.remove_uploads_before(0).unwrap(), 1);
}

#[test]
fn an_upload_id_is_never_a_path() {
    let (_folder, store) = store();
    let id = store
        .create_upload("bucket", "k", ObjectHeaders::default())
        .unwrap();
    let open = |upload_id: &str| {
        let name = UploadName {
            bucket: "bucket".to_owned(),
            key: "k".to_owned(),
            upload_id: upload_id.to_owned(),
        };
        store.open_upload(&name)
    };
    assert!(open(&id).is_ok());
    for odd in [
        "..",
        "",
        ".",
        "../bucket",
        &id.to_uppercase(),
        &format!("{{{id}}}"),
    ] {
        assert!(matches!(open(odd), Err(StoreError::NoSuchUpload)), "{odd}");
    }
}

#[test]
fn the_joined_etag_is_the_md5_of_md5s_with_the_count() {
    let part = |number, etag: &str| NamedPart {
        number,
        etag: etag.to_owned(),
    };
    let parts = [part(1, "5eb63bbbe01eeed093cb22bb8f5acdc3")];
    assert_eq!(
        joined_etag(&parts).unwrap(),
        "241d8a27c836427bd7f04461b60e7359-1"
    );
    assert!(joined_etag(&[part(1, "not hex")]).is_err());
}
