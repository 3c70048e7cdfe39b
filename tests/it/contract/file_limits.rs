//! A workspace with more files than the settings allow. What hostile code may plant in it is in `security/b_files.rs`.

use crate::support::TestApp;

#[tokio::test]
async fn more_files_than_allowed_are_left_out_and_said() {
    let app = TestApp::start_with(&[("MAX_TOTAL_FILES", "10")]).await;
    let answer = app
        .run("s", "for i in range(15): open(f'f{i:02}', 'w').write('x')")
        .await;
    assert_eq!(answer["artifacts"].as_array().unwrap().len(), 10);
    let skipped = answer["sync"]["skipped"].as_array().unwrap();
    assert_eq!(skipped.len(), 5);
    assert!(
        skipped[0]["reason"]
            .as_str()
            .unwrap()
            .contains("MAX_TOTAL_FILES")
    );
}

#[tokio::test]
async fn a_stored_file_that_a_limit_leaves_out_later_still_comes_back() {
    let app =
        TestApp::start_with(&[("MAX_TOTAL_FILES", "10"), ("DELETE_S3_ON_CLEANUP", "0")]).await;
    app.run("s", "open('z', 'w').write('stored')").await;
    app.run("s", "for i in range(10): open(f'a{i}', 'w').write('x')")
        .await;
    app.session("sandbox/stop", "s").await;
    assert_eq!(
        app.run("s", "open('z').read()").await["output"],
        "'stored'\n"
    );
}
