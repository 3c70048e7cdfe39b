//! The labels by which our containers are known, and the filters that find them again.
//! Pure. Never matches a container of another deployment.
//! Invariant: every container we make carries all labels of its deployment, so that the reaper finds it whatever happened.

use std::collections::HashMap;

use crate::sandbox::SandboxSpec;

const MANAGED: &str = "sandbox.managed";
const DEPLOYMENT: &str = "cellblock.deployment";
const NODE: &str = "cellblock.node";
const USER_KEY: &str = "cellblock.user_key";
const SESSION_KEY: &str = "cellblock.session_key";
const USER_ID: &str = "cellblock.user_id";
const SESSION_ID: &str = "cellblock.session_id";
const POOL: &str = "cellblock.pool";
/// On images: what they were built from.
pub const IMAGE_STAMP: &str = "cellblock.image_stamp";

/// Whose containers these are: one service on one host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deployment {
    pub id: String,
    pub node: String,
    /// The operator chose the id, so that several nodes may share it and only the node tells them apart.
    pub shared: bool,
}

impl Deployment {
    pub fn labels(&self, spec: &SandboxSpec) -> HashMap<String, String> {
        let mut labels = HashMap::from([
            (MANAGED.to_owned(), "1".to_owned()),
            (DEPLOYMENT.to_owned(), self.id.clone()),
            (NODE.to_owned(), self.node.clone()),
        ]);
        match &spec.session {
            Some(ids) => {
                let key = ids.key();
                labels.insert(USER_KEY.to_owned(), key.user_key);
                labels.insert(SESSION_KEY.to_owned(), key.session_key);
                labels.insert(USER_ID.to_owned(), ids.user_id().to_owned());
                labels.insert(SESSION_ID.to_owned(), ids.session_id().to_owned());
            }
            // Labels cannot be changed later: one that is handed out keeps this, and its name says whose it is.
            None => _ = labels.insert(POOL.to_owned(), "1".to_owned()),
        }
        labels
    }

    /// What the engine is to look for. A deployment that belongs to a work root is this node's whatever its name is by now.
    pub fn filters(&self) -> HashMap<String, Vec<String>> {
        let mut labels = vec![format!("{MANAGED}=1"), format!("{DEPLOYMENT}={}", self.id)];
        if self.shared {
            labels.push(format!("{NODE}={}", self.node));
        }
        HashMap::from([("label".to_owned(), labels)])
    }

    pub fn owns(&self, labels: &HashMap<String, String>) -> bool {
        let is = |name: &str, value: &str| labels.get(name).is_some_and(|found| found == value);
        is(MANAGED, "1") && is(DEPLOYMENT, &self.id) && (!self.shared || is(NODE, &self.node))
    }
}
