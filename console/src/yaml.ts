/** Reading and writing YAML: a file of its own, loaded when a kubeconfig is read or an object is shown. */
export { dump, load } from "js-yaml";
