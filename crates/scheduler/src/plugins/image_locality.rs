//! Prefers nodes that have the pod's images.

use std::sync::Arc;

use crate::cache::Snapshot;
use crate::framework::{CycleState, MAX_NODE_SCORE, Plugin, Points, Score};
use crate::node::NodeInfo;
use crate::pod::PodInfo;

const MB: i64 = 1024 * 1024;
/// Images smaller than this in sum make no difference.
const SMALL: i64 = 23 * MB;
/// An image larger than this makes no more difference.
const LARGE: i64 = 1000 * MB;

/// The plugin `ImageLocality`.
#[derive(Debug)]
pub struct ImageLocality;

impl Plugin for ImageLocality {
    fn name(&self) -> &'static str {
        "ImageLocality"
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        points.score.push(self);
    }
}

/// The name as nodes report it: with a tag.
fn normalized(image: &str) -> String {
    let tag = image.rfind(':');
    let slash = image.rfind('/');
    match (tag, slash) {
        (None, _) => format!("{image}:latest"),
        (Some(tag), Some(slash)) if tag < slash => format!("{image}:latest"),
        _ => image.to_owned(),
    }
}

impl Score for ImageLocality {
    fn score(&self, _: &CycleState, pod: &PodInfo, node: &NodeInfo, snapshot: &Snapshot) -> i64 {
        if node.images.is_empty() {
            return 0;
        }
        let total = i64::try_from(snapshot.nodes().len())
            .unwrap_or(i64::MAX)
            .max(1);
        let (mut sum, mut containers) = (0, 0);
        for container in pod.containers() {
            containers += 1;
            let Some(image) = container.image.as_deref() else {
                continue;
            };
            let name = normalized(image);
            if let Some(size) = node.images.get(&name) {
                // Scaled by how widely it is spread, lest all pods gather on one node.
                let nodes = i64::try_from(snapshot.nodes_with_image(&name)).unwrap_or(total);
                sum += size.saturating_mul(nodes) / total;
            }
        }
        let most = LARGE * containers;
        let sum = sum.clamp(SMALL, most.max(SMALL));
        if most <= SMALL {
            0
        } else {
            MAX_NODE_SCORE * (sum - SMALL) / (most - SMALL)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{Bed, pod};
    use serde_json::json;

    #[test]
    fn names_get_a_tag() {
        assert_eq!(normalized("a/b"), "a/b:latest");
        assert_eq!(normalized("host:5000/a"), "host:5000/a:latest");
        assert_eq!(normalized("host:5000/a:1"), "host:5000/a:1");
    }

    #[test]
    fn large_images_draw_pods() {
        let mut bed = Bed::new();
        let images = json!([{"names": ["big:latest"], "sizeBytes": 1000 * MB}]);
        bed.node("a", json!({"status": {"images": images}}));
        bed.node("b", json!({}));
        let wants = pod("p", json!({"containers": [{"name": "c", "image": "big"}]}));
        // Half of the nodes have it: it counts half.
        assert_eq!(bed.scores(&ImageLocality, &wants), [48, 0]);
    }
}
