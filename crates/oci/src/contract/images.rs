//! Images.

use super::*;

pub(super) async fn images(setup: Setup) {
    let spec = |image: &str| cri::ImageSpec {
        image: image.to_owned(),
        ..cri::ImageSpec::default()
    };
    let image = setup
        .runtime
        .image_status(spec(&setup.image))
        .await
        .unwrap()
        .unwrap();
    assert!(
        image.id.starts_with("sha256:") && !image.repo_tags.is_empty(),
        "{image:?}"
    );
    let by_id = setup
        .runtime
        .image_status(spec(&image.id))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(by_id.id, image.id);
    assert!(
        setup
            .runtime
            .list_images(None)
            .await
            .unwrap()
            .iter()
            .any(|i| i.id == image.id)
    );
    assert!(
        setup
            .runtime
            .image_status(spec("contract.test/no/such:image"))
            .await
            .unwrap()
            .is_none()
    );
    setup
        .runtime
        .remove_image(spec("contract.test/no/such:image"))
        .await
        .unwrap();
    let info = setup.runtime.image_fs_info().await.unwrap();
    assert!(!info.image_filesystems.is_empty());
}
