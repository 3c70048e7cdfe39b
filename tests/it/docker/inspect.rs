//! A sandbox as `docker inspect` shows it, field by field.

use serde_json::{Value, json};

use super::{deployment, inspect, start_with};

#[tokio::test]
async fn a_sandbox_is_hardened_in_every_field_that_inspect_shows() {
    let settings = [
        ("SANDBOX_CPUS", "0.5"),
        ("SANDBOX_MEMORY_MB", "256"),
        ("SANDBOX_PIDS", "77"),
        ("MAX_WORKSPACE_SIZE_MB", "100"),
        ("WORKER_ID", "node-7"),
        ("SANDBOX_API_KEY", ""),
    ];
    let app = start_with(&settings).await;
    app.run("sitzung ü \"1\"", "1").await;
    let sandboxes = app.get_json("/v1/sandboxes").await.1;
    let container = inspect(sandboxes["sandboxes"][0]["container_id"].as_str().unwrap());
    let (host, config, state) = (
        &container["HostConfig"],
        &container["Config"],
        &container["State"],
    );
    let workspace = app.only_workspace();
    let expected: Vec<(&Value, Value)> = vec![
        (&host["ReadonlyRootfs"], json!(true)),
        (&host["Privileged"], json!(false)),
        (&host["CapAdd"], json!(null)),
        (&host["CapDrop"], json!(["ALL"])),
        (&host["SecurityOpt"][0], json!("no-new-privileges:true")),
        (&host["NetworkMode"], json!("none")),
        (&host["IpcMode"], json!("private")),
        (&host["PidMode"], json!("")),
        (&host["UTSMode"], json!("")),
        (&host["UsernsMode"], json!("")),
        (&host["CgroupnsMode"], json!("private")),
        (&host["Memory"], json!(256 << 20)),
        (&host["MemorySwap"], json!(256 << 20)),
        (&host["NanoCpus"], json!(500_000_000)),
        (&host["PidsLimit"], json!(77)),
        (&host["OomScoreAdj"], json!(500)),
        (&host["OomKillDisable"], json!(false)),
        (&host["ShmSize"], json!(32 << 20)),
        (
            &host["Tmpfs"],
            json!({"/tmp": "rw,noexec,nosuid,nodev,mode=1777,size=67108864,nr_inodes=16384"}),
        ),
        (&host["LogConfig"]["Type"], json!("none")),
        (&host["RestartPolicy"]["Name"], json!("no")),
        (&host["AutoRemove"], json!(false)),
        (&host["Binds"], json!(null)),
        (&host["Devices"], json!(null)),
        (&host["PortBindings"], json!(null)),
        (&host["ExtraHosts"], json!(null)),
        (&host["GroupAdd"], json!(null)),
        (&host["Sysctls"], json!(null)),
        (&host["Runtime"], json!("runc")),
        (
            &host["Ulimits"],
            json!([
                {"Name": "nofile", "Hard": 1024, "Soft": 1024},
                // Twice the size of the volume, which is the limit that comes first.
                {"Name": "fsize", "Hard": 200 << 20, "Soft": 200 << 20},
                {"Name": "core", "Hard": 0, "Soft": 0},
            ]),
        ),
        (&config["User"], json!("65532:65532")),
        (&config["Hostname"], json!("sandbox")),
        (&config["WorkingDir"], json!("/workspace")),
        (&config["Tty"], json!(false)),
        (&config["OpenStdin"], json!(false)),
        (
            &config["Entrypoint"],
            json!(["python3", "-I", "-S", "/opt/cellblock/kernel/main.py"]),
        ),
        (&config["Cmd"], json!([])),
        (&state["Running"], json!(true)),
    ];
    for (index, (found, wanted)) in expected.iter().enumerate() {
        assert_eq!(*found, wanted, "field {index} of {container:#}");
    }
    let profile = host["SecurityOpt"][1]
        .as_str()
        .unwrap()
        .strip_prefix("seccomp=")
        .unwrap();
    let profile: Value = serde_json::from_str(profile).unwrap();
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    assert_eq!(host["SecurityOpt"].as_array().unwrap().len(), 2);
    // Docker's own masks are left as they are.
    assert!(
        host["MaskedPaths"]
            .as_array()
            .unwrap()
            .contains(&json!("/proc/kcore"))
    );
    let mounts: Vec<Value> = container["Mounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mount| {
            json!([
                mount["Source"],
                mount["Destination"],
                mount["RW"],
                mount["Propagation"],
                mount["Type"]
            ])
        })
        .collect();
    let session = workspace.parent().unwrap();
    for mount in [
        json!([workspace, "/workspace", true, "rprivate", "bind"]),
        json!([
            session.join("control"),
            "/run/cellblock",
            false,
            "rprivate",
            "bind"
        ]),
    ] {
        assert!(mounts.contains(&mount), "{mount} in {mounts:?}");
    }
    assert_eq!(mounts.len(), 2);
    let labels = &config["Labels"];
    let keys: Vec<&str> = session
        .iter()
        .rev()
        .take(2)
        .map(|part| part.to_str().unwrap())
        .collect();
    for (name, value) in [
        ("sandbox.managed", "1"),
        ("cellblock.deployment", &deployment(&app)),
        ("cellblock.node", "node-7"),
        ("cellblock.user_id", "u"),
        ("cellblock.session_id", "sitzung ü \"1\""),
        ("cellblock.user_key", keys[1]),
        ("cellblock.session_key", keys[0]),
    ] {
        assert_eq!(labels[name], value, "{name}");
    }
    assert_eq!(container["Name"], format!("/sb_{}_{}", keys[1], keys[0]));
    // What the image brings along, and what is written in `sandbox/inside.rs`; nothing of the service's.
    let image = inspect(config["Image"].as_str().unwrap());
    let of_image = image["Config"]["Env"].as_array().unwrap();
    let own = |name: &str| {
        ["PATH", "LANG", "HOME", "CELLBLOCK_PRELOAD"].contains(&name)
            || name.ends_with("_NUM_THREADS")
    };
    for entry in config["Env"].as_array().unwrap() {
        let name = entry.as_str().unwrap().split('=').next().unwrap();
        assert!(own(name) || of_image.contains(entry), "{entry}");
    }
}

#[tokio::test]
async fn a_sandbox_from_the_pool_gets_the_name_of_its_session() {
    let app = start_with(&[("SANDBOX_POOL_SIZE", "1")]).await;
    crate::support::wait_for("a sandbox to wait", || {
        (app.log().contains("kernel connected")).then_some(())
    })
    .await;
    while app.get_json("/health").await.1["pool_available"] != 1 {}
    let name = uuid::Uuid::new_v4().to_string();
    app.run(&name, "1").await;
    let container = app.container_of(&name).await;
    let session = app.only_workspace().parent().unwrap().to_owned();
    let keys: Vec<&str> = session
        .iter()
        .rev()
        .take(2)
        .map(|part| part.to_str().unwrap())
        .collect();
    let name = json!(format!("/sb_{}_{}", keys[1], keys[0]));
    crate::support::wait_for("the name", || {
        (inspect(&container)["Name"] == name).then_some(())
    })
    .await;
    assert_eq!(
        inspect(&container)["Config"]["Labels"]["cellblock.pool"],
        "1"
    );
}

#[tokio::test]
async fn no_program_of_the_image_has_the_setuid_bit() {
    let app = start_with(&[]).await;
    let code = "import subprocess; print(subprocess.run('find / -xdev -type f -perm /6000 2>/dev/null', shell=True, capture_output=True, text=True).stdout.split())";
    let answer = app
        .run_with("s", code, json!({"timeout_seconds": 60}))
        .await;
    assert_eq!(answer["output"], "[]\n");
}
