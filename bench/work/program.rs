//! A program beside the cells: a bash that does nothing.
//! Never counts the making of the sandbox. Invariant: the program's exit code was 0.

use serde_json::{Value, json};

use super::{Sheet, timed};
use crate::Bench;
use crate::report::figures::{Contender, Work};

pub fn measure(bench: &mut Bench) {
    let mut sheet = Sheet::of(Work::Program);
    let mut calls = Vec::new();
    for own in &mut bench.owns {
        let open = json!({"context": {"agent_run_id": "bench"}}).to_string();
        let opened = own.client.post("/v1/tools/sandbox_open", &open);
        let opened: Value = serde_json::from_str(&opened).unwrap();
        let input = json!({"sandbox_id": opened["sandbox_id"], "cmd": ["bash", "-c", "true"]});
        calls.push(json!({ "input": input }).to_string());
    }
    for _ in 0..bench.effort.rounds(20) {
        for (own, call) in bench.owns.iter_mut().zip(&calls) {
            for _ in 0..10 {
                let time = timed(|| {
                    let answer = own.client.post("/v1/tools/sandbox_exec", call);
                    assert!(answer.contains(r#""exit_code":0"#), "{answer}");
                });
                sheet.note(own.contender, time);
            }
        }
        sheet.ask_peers(bench, "program", |contender| match contender {
            Contender::KernelGateway => 0,
            _ => 1,
        });
    }
    sheet.write(bench);
    for (own, call) in bench.owns.iter_mut().zip(&calls) {
        own.client.post("/v1/tools/sandbox_close", call);
    }
}
