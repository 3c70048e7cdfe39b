//! The description of every route of every dialect (`/openapi.json`), and a page that shows it (`/docs`) with no internet.
//! Holds no logic of the service. Invariant: what the router has is described, and nothing else (a test compares them).

mod routes;

use axum::Json;
use axum::http::header;
use axum::response::{Html, IntoResponse};
use serde_json::{Map, Value, json};

use routes::{Body, Route, routes};

const PAGE: &str = include_str!("docs.html");

pub async fn document() -> Json<Value> {
    Json(describe())
}

pub async fn page() -> impl IntoResponse {
    // It shows text from our own description and asks nobody else for anything.
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'";
    ([(header::CONTENT_SECURITY_POLICY, policy)], Html(PAGE))
}

fn describe() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in routes() {
        let operations = paths.entry(route.path).or_insert_with(|| json!({}));
        operations[route.method] = operation(&route);
    }
    paths.insert("/mcp".to_owned(), json!({"post": mcp()}));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Cellblock",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Sandboxed code execution: one core, several dialects. Every response carries X-Request-Id.",
        },
        "security": [{"ApiKey": []}, {"Bearer": []}, {}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "ApiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                "Bearer": {"type": "http", "scheme": "bearer"},
            },
            "schemas": {
                "Problem": {
                    "type": "object",
                    "required": ["type", "title", "status", "detail", "code"],
                    "properties": {
                        "type": {"type": "string"}, "title": {"type": "string"}, "status": {"type": "integer"}, "detail": {"type": "string"},
                        "code": {"type": "string", "enum": ["invalid_argument", "unauthorized", "not_found", "busy", "capacity", "too_large",
                            "quota_exceeded", "timeout", "unavailable", "internal"]},
                    },
                },
                "Error": {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}},
                "Detail": {"type": "object", "required": ["detail"], "properties": {"detail": {"type": "string"}}},
            },
        },
    })
}

/// MCP describes itself; here it is only said where it is.
fn mcp() -> Value {
    let message = json!({"type": "object", "required": ["jsonrpc"], "properties": {"jsonrpc": {"type": "string", "enum": ["2.0"]}, "method": {"type": "string"}}});
    json!({
        "tags": ["mcp"],
        "operationId": "post_mcp",
        "summary": "Model Context Protocol, streamable HTTP",
        "requestBody": {"required": true, "content": {"application/json": {"schema": message}}},
        "responses": {
            "200": {"description": "An answer, or a stream of them", "content": {"application/json": {}, "text/event-stream": {}}},
            "202": {"description": "Taken"},
            "4XX": {"description": "Not a message of the protocol, or not allowed"},
            "5XX": {"description": "Not done"},
        },
    })
}

fn operation(route: &Route) -> Value {
    let mut operation = json!({
        "tags": [route.dialect],
        "operationId": format!("{}_{}", route.method, route.path.trim_matches('/').replace(['/', '{', '}', '-', '.'], "_")),
        "summary": route.summary,
        "responses": responses(route),
    });
    if route.is_open {
        operation["security"] = json!([]);
    }
    if !route.parameters.is_empty() {
        operation["parameters"] = json!(route.parameters);
    }
    match &route.body {
        Body::None => {}
        Body::Json(schema) => {
            operation["requestBody"] =
                json!({"required": true, "content": {"application/json": {"schema": schema}}});
        }
        Body::Multipart(schema) => {
            operation["requestBody"] =
                json!({"required": true, "content": {"multipart/form-data": {"schema": schema}}});
        }
    }
    operation
}

fn responses(route: &Route) -> Value {
    let mut responses = Map::new();
    for (status, description, content) in &route.answers {
        let mut response = json!({ "description": description });
        if let Some((mime, schema)) = content {
            response["content"] = json!({ *mime: {"schema": schema} });
        }
        if route.streams && *status == 200 {
            response["content"]["text/event-stream"] = json!({});
        }
        responses.insert(status.to_string(), response);
    }
    if route.is_open {
        return Value::Object(responses);
    }
    for (status, description) in [
        (400, "A field is missing or wrong"),
        (401, "No key, a wrong key, or more than one"),
        (
            403,
            "Not for this service: the request is not local and there is no key",
        ),
        (404, "No such thing"),
        (405, "Wrong method"),
        (413, "Too large"),
        (415, "A body that does not say what it is"),
        (429, "Too busy or too many sandboxes; see Retry-After"),
        (500, "A fault of the service"),
        (503, "The engine, the store or the service is not available"),
        (507, "The workspace would be too large"),
    ] {
        let schema = match route.dialect {
            // The key is asked for by the same rules everywhere.
            _ if matches!(status, 401 | 403 | 405) => ("application/problem+json", "Problem"),
            "threads" => ("application/json", "Error"),
            "sessions" => ("application/json", "Detail"),
            _ => ("application/problem+json", "Problem"),
        };
        let reference = format!("#/components/schemas/{}", schema.1);
        responses.entry(status.to_string()).or_insert_with(|| {
            json!({"description": description, "content": {schema.0: {"schema": {"$ref": reference}}}})
        });
    }
    Value::Object(responses)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Method and path of every route, read from the router's own source.
    fn routed() -> Vec<(String, String)> {
        let source = include_str!("../mod.rs");
        let mut found = Vec::new();
        for part in source.split(".route(").skip(1) {
            let path = part.split('"').nth(1).unwrap().to_owned();
            let method = part
                .split(',')
                .nth(1)
                .unwrap()
                .trim()
                .split('(')
                .next()
                .unwrap();
            found.push((method.to_owned(), path));
        }
        found.sort();
        found
    }

    #[test]
    fn every_route_is_described_and_nothing_else() {
        let mut described: Vec<(String, String)> = routes()
            .into_iter()
            .map(|route| (route.method.to_owned(), route.path.to_owned()))
            .collect();
        described.sort();
        assert_eq!(described, routed());
    }

    #[test]
    fn every_operation_has_an_answer_a_summary_and_its_own_id() {
        let document = describe();
        let mut ids = Vec::new();
        for (path, operations) in document["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                assert!(
                    !operation["summary"].as_str().unwrap().is_empty(),
                    "{method} {path}"
                );
                assert!(
                    operation["responses"]
                        .as_object()
                        .unwrap()
                        .keys()
                        .any(|status| status.starts_with('2')),
                    "{method} {path}"
                );
                ids.push(operation["operationId"].clone());
                for name in path
                    .split('{')
                    .skip(1)
                    .map(|part| part.split('}').next().unwrap())
                {
                    let parameters = operation["parameters"].as_array().unwrap();
                    assert!(parameters.iter().any(|parameter| parameter["name"] == name && parameter["in"] == "path"), "{path}");
                }
            }
        }
        let count = ids.len();
        ids.sort_by_key(Value::to_string);
        ids.dedup();
        assert_eq!(ids.len(), count);
    }

    #[test]
    fn the_description_is_the_one_that_was_looked_at() {
        let now = serde_json::to_string_pretty(&describe()).unwrap() + "\n";
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/openapi.json");
        if std::env::var_os("CELLBLOCK_UPDATE_SNAPSHOTS").is_some() {
            std::fs::write(path, &now).unwrap();
        }
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            kept == now,
            "docs/openapi.json differs: look at the change, then run with CELLBLOCK_UPDATE_SNAPSHOTS=1"
        );
    }
}
