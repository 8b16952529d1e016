"""What a transaction means at a node: branches, the resources that stand for them, orphans."""
