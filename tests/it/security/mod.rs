//! The attack battery: every case of groups A to F, one test or several per case, run against the real service.
//! A test's name is its claim: `case_05_…` proves case 5, and the table in docs/SECURITY.md is made from these names.
//! Groups A, B, C and F run once per backend (CELLBLOCK_TEST_BACKEND); D and E never look at a container and run once.

mod a_container;
mod b_files;
mod c_kernel;
mod d_urls;
mod e_api;
mod f_load;

use std::io::Write;

use serde_json::{Value, json};

use crate::support::{TestApp, backend};

/// What a cell printed; it must have ended well.
async fn output(app: &TestApp, session: &str, code: &str) -> String {
    let answer = app
        .run_with(session, code, json!({"timeout_seconds": 50}))
        .await;
    assert_eq!(answer["status"], "ok", "{answer}");
    answer["output"].as_str().unwrap().to_owned()
}

/// What a cell printed, as the JSON that it is.
async fn printed_json(app: &TestApp, session: &str, code: &str) -> Value {
    let text = output(app, session, code).await;
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Says aloud that a part of a case cannot be tried on this machine: past the capture of the test runner, into its log,
/// from where the table takes it.
pub fn not_testable_here(case: u32, what: &str) {
    let line = format!("NOT TESTABLE HERE case {case:02} {}: {what}\n", backend());
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}
